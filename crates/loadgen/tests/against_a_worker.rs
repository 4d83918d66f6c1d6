//! The whole program against a worker that answers every sequence with a row made of its ids.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::process::{Command, Output as Outcome};

use flowerbed_protocol::v1::inference_server::{Inference, InferenceServer};
use flowerbed_protocol::v1::{
    DescribeRequest, DescribeResponse, Dtype, Lane, ModelInfo, Output, RunRequest, RunResponse,
    RunStats,
};
use flowerbed_protocol::{Error, ErrorKind, packed};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// A sequence that begins with this id is refused.
const REFUSED: u32 = 99;

struct Rows;

#[tonic::async_trait]
impl Inference for Rows {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let model = ModelInfo {
            id: "rows".to_owned(),
            space: "s1".to_owned(),
            ..ModelInfo::default()
        };
        Ok(Response::new(DescribeResponse {
            protocol: 1,
            models: vec![model],
        }))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let asked = request.into_inner();
        assert_eq!((&*asked.model, &*asked.space), ("rows", "s1"));
        assert_eq!(asked.lane(), Lane::Scoring);
        assert_eq!(asked.outputs[0].dtype(), Dtype::Float32);
        let (ids, lengths) = (packed::to_u32s(&asked.ids), packed::to_u32s(&asked.lengths));
        let (ids, lengths) = (ids.unwrap(), lengths.unwrap());
        assert_eq!(ids.len(), lengths.iter().sum::<u32>() as usize);
        if ids[0] == REFUSED {
            return Err(Error::new(ErrorKind::Overloaded, "full").into());
        }
        // Of length 1 where a sequence has one id.
        let row = |len: &u32| [1.0, 1.0 - f32::from(u16::try_from(*len).unwrap())];
        let data: Vec<u8> = lengths
            .iter()
            .flat_map(row)
            .flat_map(f32::to_le_bytes)
            .collect();
        let output = Output {
            dtype: Dtype::Float32.into(),
            shape: vec![lengths.len() as u64, 2],
            data: data.into(),
            ..Output::default()
        };
        let stats = RunStats {
            queue_us: 10,
            step_us: 20,
            ..RunStats::default()
        };
        Ok(Response::new(RunResponse {
            outputs: vec![output],
            stats: Some(stats),
            load: None,
        }))
    }
}

/// The runtime serves as long as it lives.
fn serve() -> (Runtime, String) {
    let runtime = Runtime::new().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = format!("grpc://{}", listener.local_addr().unwrap());
    let server = Server::builder().add_service(InferenceServer::new(Rows));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (runtime, address)
}

fn load(plan: &str, stream: &str) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.jsonl");
    fs::write(&path, plan).unwrap();
    let (_runtime, address) = serve();
    Command::new(env!("CARGO_BIN_EXE_flowerbed-loadgen"))
        .args(["--target", &address, "--threads", "2", "--stream"])
        .arg(format!("plan={},{stream}", path.display()))
        .output()
        .unwrap()
}

fn report(outcome: &Outcome) -> Value {
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{errors}");
    serde_json::from_slice(&outcome.stdout).unwrap()
}

fn line(ids: &str, rows: usize) -> String {
    format!("{{\"run\": {{\"ids\": {ids}, \"lane\": \"scoring\"}}, \"rows\": {rows}}}\n")
}

#[test]
fn calls_are_counted_with_their_rows_tokens_and_times() {
    let report = report(&load(
        &line("[[3], [4]]", 2),
        "callers=2,max_requests=10,check=no",
    ));
    assert_eq!((&report["sent"], &report["ok"]), (&10.into(), &10.into()));
    let rows = report["rows_per_second"].as_f64().unwrap();
    let tokens = report["tokens_per_second"].as_f64().unwrap();
    let seconds = report["seconds"].as_f64().unwrap();
    assert!((rows * seconds - 20.0).abs() < 1e-6);
    assert!((tokens * seconds - 20.0).abs() < 1e-6);
    assert_eq!(report["queue_ms"]["max"], 0.01);
    assert_eq!(report["step_ms"]["max"], 0.02);
}

#[test]
fn refusals_and_wrong_rows_are_told_apart() {
    let plan = [
        line("[[3]]", 1),
        line("[[99]]", 1),
        line("[[3], [4]]", 3),
        line("[[3], [5, 5, 5]]", 2),
    ];
    let report = report(&load(&plan.concat(), "callers=1,max_requests=4"));
    assert_eq!(report["ok"], 1);
    let refused = report["errors"].as_object().unwrap();
    assert_eq!(refused.values().collect::<Vec<_>>(), [&Value::from(1)]);
    let reasons = report["wrong_reasons"].as_array().unwrap();
    assert_eq!(reasons[0], "shape [2, 2] instead of 3 rows");
    assert!(reasons[1].as_str().unwrap().starts_with("row 1 has length"));
}

#[test]
fn what_is_for_a_gateway_is_refused() {
    let outcome = load("{\"body\": {}, \"rows\": 1}\n", "callers=1");
    assert!(!outcome.status.success());
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(errors.contains("a worker takes run"), "{errors}");
}
