//! A worker without a model: it answers a vector made from the ids, or fails as it is told.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flowerbed_protocol::v1::inference_server::{Inference, InferenceServer};
use flowerbed_protocol::v1::{
    DescribeRequest, DescribeResponse, Dtype, Head, Load, ModelInfo, Output, RunRequest,
    RunResponse, RunStats,
};
use flowerbed_protocol::{Error, PROTOCOL_VERSION, limits, packed};
use parking_lot::Mutex;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_health::server::HealthReporter;

use super::model;

/// What a worker does with the chunks it gets.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) info: ModelInfo,
    pub(crate) protocol: u32,
    pub(crate) delay: Duration,
    pub(crate) error: Option<Error>,
    pub(crate) bad_row: Option<usize>,
    pub(crate) rows_missing: usize,
    pub(crate) load: Option<Load>,
    /// What it answers to a scrape.
    pub(crate) metrics: String,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            info: model::info(),
            protocol: PROTOCOL_VERSION,
            delay: Duration::ZERO,
            error: None,
            bad_row: None,
            rows_missing: 0,
            load: None,
            metrics: String::new(),
        }
    }
}

/// A chunk that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) message: RunRequest,
    pub(crate) headers: http::HeaderMap,
}

impl Call {
    /// The ids of each sequence.
    pub(crate) fn sequences(&self) -> Vec<Vec<u32>> {
        let mut ids = packed::to_u32s(&self.message.ids).unwrap().into_iter();
        let lengths = packed::to_u32s(&self.message.lengths).unwrap();
        lengths
            .iter()
            .map(|length| ids.by_ref().take(*length as usize).collect())
            .collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

#[derive(Debug, Default)]
struct Shared {
    behaviour: Mutex<Behaviour>,
    calls: Mutex<Vec<Call>>,
    num_dropped: AtomicUsize,
}

/// A running fake worker; dropped, it dies at once, connections and all.
pub(crate) struct Tulip {
    pub(crate) address: String,
    shared: Arc<Shared>,
    health: HealthReporter,
    runtime: Option<Runtime>,
}

impl Tulip {
    pub(crate) fn start() -> Self {
        Self::start_at("127.0.0.1:0", Behaviour::default())
    }

    /// `address` is `host:port` or `unix:path`.
    pub(crate) fn start_at(address: &str, behaviour: Behaviour) -> Self {
        let runtime = Runtime::new().unwrap();
        let (health, health_service) = tonic_health::server::health_reporter();
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(behaviour),
            ..Shared::default()
        });
        let service = InferenceServer::from_arc(Arc::new(Service(Arc::clone(&shared))))
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES);
        let routes = Routes::new(health_service).add_service(service);
        let scraped = Arc::clone(&shared);
        let router = routes.into_axum_router().route(
            "/metrics",
            axum::routing::get(async move || scraped.behaviour.lock().metrics.clone()),
        );
        let server = Server::builder().add_routes(Routes::from(router));
        runtime.block_on(health.set_serving::<InferenceServer<Service>>());
        let address = if let Some(path) = address.strip_prefix("unix:") {
            let _context = runtime.enter();
            let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
            runtime.spawn(server.serve_with_incoming(incoming));
            address.to_owned()
        } else {
            let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
            let bound: SocketAddr = listener.local_addr().unwrap();
            runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
            bound.to_string()
        };
        Self {
            address,
            shared,
            health,
            runtime: Some(runtime),
        }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.behaviour.lock());
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().clone()
    }

    /// Calls whose handler was dropped before it had answered.
    pub(crate) fn num_dropped(&self) -> usize {
        self.shared.num_dropped.load(Ordering::SeqCst)
    }

    pub(crate) fn set_serving(&self, is_serving: bool) {
        let runtime = self.runtime.as_ref().unwrap();
        if is_serving {
            runtime.block_on(self.health.set_serving::<InferenceServer<Service>>());
        } else {
            runtime.block_on(self.health.set_not_serving::<InferenceServer<Service>>());
        }
    }

    /// Dies at once; gives the address for a successor.
    pub(crate) fn die(self) -> String {
        self.address.clone()
    }
}

impl Drop for Tulip {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

pub(crate) struct Service(Arc<Shared>);

struct DropCount<'a>(&'a Shared, bool);

impl Drop for DropCount<'_> {
    fn drop(&mut self) {
        if !self.1 {
            self.0.num_dropped.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[tonic::async_trait]
impl Inference for Service {
    async fn describe(
        &self,
        _: Request<DescribeRequest>,
    ) -> Result<Response<DescribeResponse>, Status> {
        let behaviour = self.0.behaviour.lock().clone();
        let models = vec![behaviour.info];
        Ok(Response::new(DescribeResponse {
            protocol: behaviour.protocol,
            models,
        }))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        let behaviour = self.0.behaviour.lock().clone();
        let headers = request.metadata().clone().into_headers();
        let call = Call {
            message: request.into_inner(),
            headers,
        };
        self.0.calls.lock().push(call.clone());
        let mut count = DropCount(&self.0, false);
        tokio::time::sleep(behaviour.delay).await;
        count.1 = true;
        if let Some(error) = behaviour.error {
            return Err(error.into());
        }
        let width = call.message.outputs[0].dimensions;
        let sequences = call.sequences();
        let row = |ids: &[u32]| model::vector(ids, width);
        let mut row_offsets = bytes::Bytes::new();
        let mut rows: Vec<Vec<f32>> = if call.message.head() == Head::Tokens {
            let mut ends = vec![0];
            ends.extend(sequences.iter().scan(0, |end, ids| {
                *end += u32::try_from(ids.len()).unwrap();
                Some(*end)
            }));
            row_offsets = packed::from_u32s(&ends);
            sequences.concat().iter().map(|id| row(&[*id])).collect()
        } else {
            sequences.iter().map(|ids| row(ids)).collect()
        };
        if let Some(row) = behaviour.bad_row {
            rows[row][0] = f32::NAN;
        }
        rows.truncate(rows.len() - behaviour.rows_missing);
        let output = Output {
            dtype: Dtype::Float32.into(),
            shape: vec![rows.len() as u64, u64::from(width)],
            row_offsets,
            data: rows
                .iter()
                .flatten()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            ..Output::default()
        };
        let stats = RunStats {
            queue_us: 11,
            step_us: 22,
            mode: "replay".to_owned(),
            ..RunStats::default()
        };
        Ok(Response::new(RunResponse {
            outputs: vec![output],
            stats: Some(stats),
            load: behaviour.load,
        }))
    }
}
