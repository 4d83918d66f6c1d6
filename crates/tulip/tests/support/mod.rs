//! A Tulip on a Unix socket, a client for it, and an engine that needs no model: a row is the sum
//! of its tokens, then their count, then zeros.

#![allow(dead_code, reason = "each test file uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use flowerbed_protocol::v1::inference_client::InferenceClient;
use flowerbed_protocol::{packed, v1};
use flowerbed_tulip::batch::Batch;
use flowerbed_tulip::config::Head;
use flowerbed_tulip::{PendingRows, Pull, SERVICE_NAME, StepFault, Tulip, WorkerConfig};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

pub(crate) const DIMENSIONS: u32 = 4;
/// More than a pooled row has.
pub(crate) const TOKEN_DIMENSIONS: u32 = 6;
pub(crate) const VOCAB: u32 = 1_000;
/// A batch that holds this id makes the fake step raise.
pub(crate) const POISON: u32 = 666;
/// There is never enough memory for a batch that holds this id.
pub(crate) const HUGE: u32 = 888;
/// The id of Tulip's own probes.
const PROBE: u32 = 1;
/// A sequence that holds this id gets a row that is not finite.
pub(crate) const NAN: u32 = 777;
/// And this one spoils the rows of all that are in its step, as kernels may that read whole tiles.
pub(crate) const SPOILS: u32 = 779;

pub(crate) struct Worker {
    pub(crate) tulip: Arc<Tulip>,
    pub(crate) steps: Arc<AtomicUsize>,
    engine: Option<JoinHandle<()>>,
    _folder: TempDir,
}

pub(crate) fn config(listen: &str) -> serde_json::Value {
    serde_json::json!({
        "model": {
            "id": "fake", "revision": "1", "space": "space-1", "tokenizer_sha256": "t",
            "text_sha256": "x", "max_length": 64, "vocab_rows": VOCAB, "dimensions": DIMENSIONS,
            "allowed_dimensions": [], "normalize": false, "heads": ["embed"],
            "attention_scale": 0.0, "dtype": "float32", "device": "cpu", "pooling": "mean",
            "token_dimensions": TOKEN_DIMENSIONS, "weights_sha256": "w",
        },
        "listen": listen, "metrics_listen": null, "token": null, "max_batch_tokens": 32, "saturation_batch_tokens": 32, "online_batch_tokens": 32,
        "beside_batch_tokens": 32, "spin_ms": 0, "step_timeout_s": 30.0,
        "max_batch_sequences": 8,
        "streams": ["normal"], "steps_in_flight": 1, "request_timeout_s": 30.0,
        "cost_per_second": 1e6,
    })
}

impl Worker {
    pub(crate) fn start(change: impl FnOnce(&mut serde_json::Value), step_time: Duration) -> Self {
        Self::start_with(change, step_time, || panic!("no step hangs here"))
    }

    /// Its engine fails even the probes.
    pub(crate) fn start_broken() -> Self {
        Self::start_poisoned(|_| {}, Duration::ZERO, || (), PROBE)
    }

    pub(crate) fn start_with(
        change: impl FnOnce(&mut serde_json::Value),
        step_time: Duration,
        give_up: fn(),
    ) -> Self {
        Self::start_poisoned(change, step_time, give_up, POISON)
    }

    fn start_poisoned(
        change: impl FnOnce(&mut serde_json::Value),
        step_time: Duration,
        give_up: fn(),
        poison: u32,
    ) -> Self {
        Self::start_engine(change, give_up, move |tulip, batch| {
            std::thread::sleep(step_time);
            if batch.ids.contains(&poison) {
                tulip.failed(batch.id, "poison".to_owned(), StepFault::Input);
            } else if batch.ids.contains(&HUGE) {
                tulip.failed(batch.id, "no memory".to_owned(), StepFault::Memory);
            } else {
                tulip.launched(batch.id, done(&batch), "eager".to_owned(), 0);
            }
        })
    }

    /// `step` runs each batch, on the thread that pulls them.
    pub(crate) fn start_engine(
        change: impl FnOnce(&mut serde_json::Value),
        give_up: fn(),
        mut step: impl FnMut(&Tulip, Batch) + Send + 'static,
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let mut config = config(&format!("unix:{}/w.sock", folder.path().display()));
        change(&mut config);
        let config: WorkerConfig = serde_json::from_value(config).unwrap();
        // A blocking call, which a test's runtime forbids on its own thread.
        let tulip = std::thread::spawn(move || Tulip::start(config, give_up))
            .join()
            .unwrap();
        let tulip = Arc::new(tulip.unwrap());
        let steps = Arc::new(AtomicUsize::new(0));
        let (pulled, counted) = (Arc::clone(&tulip), Arc::clone(&steps));
        let engine = std::thread::spawn(move || {
            loop {
                match pulled.next_batch(Duration::from_millis(20)) {
                    Pull::Nothing => {}
                    Pull::Drained => break,
                    Pull::Batch(batch) => {
                        counted.fetch_add(1, Ordering::SeqCst);
                        step(&pulled, *batch);
                    }
                }
            }
        });
        Self {
            tulip,
            steps,
            engine: Some(engine),
            _folder: folder,
        }
    }

    pub(crate) async fn client(&self) -> InferenceClient<Channel> {
        client_of(self.tulip.address()).await
    }

    /// Waits until the thread that pulls batches has ended by itself.
    pub(crate) async fn join_engine(mut self) {
        let engine = self.engine.take();
        tokio::task::spawn_blocking(move || engine.unwrap().join().unwrap())
            .await
            .unwrap();
        let tulip = Arc::clone(&self.tulip);
        tokio::task::spawn_blocking(move || tulip.stop())
            .await
            .unwrap();
    }

    pub(crate) async fn stop(mut self) {
        let (tulip, engine) = (Arc::clone(&self.tulip), self.engine.take());
        tokio::task::spawn_blocking(move || {
            tulip.drain(Duration::from_secs(30));
            engine.unwrap().join().unwrap();
            tulip.stop();
        })
        .await
        .unwrap();
    }
}

pub(crate) async fn channel_to(address: &str) -> Channel {
    let endpoint = if address.starts_with("unix:") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    Endpoint::new(endpoint).unwrap().connect().await.unwrap()
}

pub(crate) async fn client_of(address: &str) -> InferenceClient<Channel> {
    InferenceClient::new(channel_to(address).await)
}

pub(crate) fn ask_health() -> HealthCheckRequest {
    HealthCheckRequest {
        service: SERVICE_NAME.to_owned(),
    }
}

pub(crate) async fn health_of(worker: &Worker) -> ServingStatus {
    let mut client = HealthClient::new(channel_to(worker.tulip.address()).await);
    client
        .check(ask_health())
        .await
        .map_or(ServingStatus::Unknown, |answer| {
            answer.into_inner().status()
        })
}

pub(crate) async fn until_serving(worker: &Worker) {
    for _ in 0..200 {
        if health_of(worker).await == ServingStatus::Serving {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the worker never served");
}

/// The rows of a batch whose step is over.
pub(crate) fn done(batch: &Batch) -> Box<dyn PendingRows> {
    Box::new(Rows(fake_step(batch)))
}

struct Rows(Bytes);

impl PendingRows for Rows {
    fn wait(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn take(self: Box<Self>) -> Bytes {
        self.0
    }
}

pub(crate) fn fake_step(batch: &Batch) -> Bytes {
    let mut rows = Vec::new();
    let mut statuses = Vec::new();
    let are_spoiled = batch.ids.contains(&SPOILS);
    for format in batch.row_formats.chunks(Batch::FORMAT_COLUMNS) {
        let segment = format[0] as usize;
        let (start, end) = (batch.segments[2 * segment], batch.segments[2 * segment + 1]);
        let ids = &batch.ids[start as usize..end as usize];
        let row = match batch.head {
            Head::Tokens => token_row(ids).to_vec(),
            _ => row_of(ids).to_vec(),
        };
        for value in &row[..format[3] as usize] {
            rows.extend(value.to_le_bytes());
        }
        statuses.push(u8::from(are_spoiled || ids.contains(&NAN)));
    }
    rows.extend(statuses);
    rows.into()
}

pub(crate) fn row_of(ids: &[u32]) -> [f32; DIMENSIONS as usize] {
    [ids.iter().sum::<u32>() as f32, ids.len() as f32, 0.0, 0.0]
}

/// The one token's id, then its negative.
pub(crate) fn token_row(ids: &[u32]) -> [f32; TOKEN_DIMENSIONS as usize] {
    assert_eq!(ids.len(), 1, "a row of the tokens head is one token");
    let id = ids[0] as f32;
    [id, 0.0, 0.0, 0.0, 0.0, -id]
}

pub(crate) fn request(sequences: &[&[u32]]) -> v1::RunRequest {
    let lengths: Vec<u32> = sequences.iter().map(|ids| ids.len() as u32).collect();
    v1::RunRequest {
        model: "fake".to_owned(),
        space: "space-1".to_owned(),
        head: v1::Head::Embed.into(),
        ids: packed::from_u32s(&sequences.concat()),
        lengths: packed::from_u32s(&lengths),
        outputs: vec![v1::OutputSpec {
            dtype: v1::Dtype::Float32.into(),
            dimensions: 0,
            normalize: v1::Normalize::Model.into(),
        }],
        lane: v1::Lane::Online.into(),
        ..Default::default()
    }
}

pub(crate) fn rows(output: &v1::Output) -> Vec<Vec<f32>> {
    let values: Vec<f32> = output
        .data
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| f32::from_le_bytes(*word))
        .collect();
    values
        .chunks(output.shape[1] as usize)
        .map(<[f32]>::to_vec)
        .collect()
}
