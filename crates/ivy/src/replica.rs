//! One worker as the balancer sees it: whether it is up, how much it has in hand, and how to call
//! it.
//!
//! `connect.rs` owns the connection and decides when a replica is up. A replica knows nothing of
//! requests: it runs one chunk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowerbed_protocol::error::ERROR_TRAILER;
use flowerbed_protocol::trace::TRACEPARENT;
use flowerbed_protocol::v1::inference_client::InferenceClient;
use flowerbed_protocol::v1::{Load, ModelInfo, RunRequest, RunResponse};
use flowerbed_protocol::{Error, ErrorKind, limits};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::error::internal;
use crate::metrics::Metrics;

/// What a worker had queued counts this long; then only our own count does, or a replica that was
/// busy once would never be asked again. Its rate counts until it tells another one.
const REPORT_LIFETIME: Duration = Duration::from_secs(1);
/// gRPC's deadline is rounded down and may pass a little before our own timer.
const DEADLINE_ROUNDING: Duration = Duration::from_millis(5);

/// A channel that shows the shared secret.
pub(crate) type AuthorizedChannel = InterceptedService<Channel, Authorization>;

/// Adds the shared secret, if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Authorization(pub(crate) Option<MetadataValue<Ascii>>);

impl Interceptor for Authorization {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// One worker, whether it is up or not.
#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) index: usize,
    /// In logs, labels and `/ready`.
    pub(crate) name: String,
    state: RwLock<State>,
    /// Cost of our chunks that it has not answered.
    outstanding: AtomicU64,
    report: Mutex<Option<Report>>,
    metrics: Arc<Metrics>,
}

#[derive(Clone, Debug)]
enum State {
    Down { reason: String },
    Up(Arc<Session>),
}

/// One connection whose worker was accepted.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: InferenceClient<AuthorizedChannel>,
    /// The same connection, for what is no call.
    pub(crate) channel: AuthorizedChannel,
    pub(crate) info: ModelInfo,
    /// Wakes the owner of the connection after a call found it broken.
    pub(crate) broken: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    at: Instant,
    /// Queued cost that is not ours.
    others: u64,
    cost_per_second: f64,
    queue_limit: u64,
}

/// What a call carries beside its message.
#[derive(Clone, Debug)]
pub(crate) struct CallOptions {
    pub(crate) deadline: Instant,
    pub(crate) traceparent: Option<MetadataValue<Ascii>>,
}

impl Replica {
    pub(crate) fn new(index: usize, name: String, metrics: Arc<Metrics>) -> Self {
        metrics.replica_up(&name, false);
        Self {
            index,
            name,
            state: RwLock::new(State::Down {
                reason: "not connected yet".to_owned(),
            }),
            outstanding: AtomicU64::new(0),
            report: Mutex::new(None),
            metrics,
        }
    }

    /// The connection, while the replica is up.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        match &*self.state.read() {
            State::Up(session) => Some(Arc::clone(session)),
            State::Down { .. } => None,
        }
    }

    /// Why it is down, if it is.
    pub(crate) fn down_reason(&self) -> Option<String> {
        match &*self.state.read() {
            State::Up(_) => None,
            State::Down { reason } => Some(reason.clone()),
        }
    }

    /// From now on it is asked.
    pub(crate) fn set_up(&self, session: &Arc<Session>) {
        *self.state.write() = State::Up(Arc::clone(session));
        *self.report.lock() = None;
        self.metrics.replica_up(&self.name, true);
        tracing::info!(
            replica = self.name,
            space = session.info.space,
            "worker is up"
        );
    }

    /// From now on it is not asked.
    pub(crate) fn set_down(&self, reason: &str) {
        let mut state = self.state.write();
        match &*state {
            State::Up(_) => tracing::warn!(replica = self.name, reason, "worker is down"),
            State::Down { reason: known } if known != reason => {
                tracing::info!(replica = self.name, reason, "worker is not up yet");
            }
            State::Down { .. } => {}
        }
        *state = State::Down {
            reason: reason.to_owned(),
        };
        self.metrics.replica_up(&self.name, false);
    }

    /// Work in hand: ours, and what others had queued when it last told.
    pub(crate) fn load(&self) -> u64 {
        self.outstanding
            .load(Ordering::Relaxed)
            .saturating_add(self.load_of_others())
    }

    /// Work of other gateways, if it was told lately.
    pub(crate) fn load_of_others(&self) -> u64 {
        self.report
            .lock()
            .filter(|report| report.at.elapsed() < REPORT_LIFETIME)
            .map_or(0, |report| report.others)
    }

    /// The rate that it measured last; before its first answer, the one that its queue was sized by.
    #[allow(clippy::cast_precision_loss, reason = "costs are far below 2^52")]
    pub(crate) fn cost_per_second(&self, session: &Session) -> f64 {
        self.report
            .lock()
            .map(|report| report.cost_per_second)
            .filter(|rate| *rate > 0.0)
            .unwrap_or(session.info.queue_limit as f64 / limits::QUEUE_SECONDS)
    }

    /// What its queue holds: as it told last, for the limit follows the rate.
    pub(crate) fn queue_limit(&self, session: &Session) -> u64 {
        self.report
            .lock()
            .map(|report| report.queue_limit)
            .filter(|limit| *limit > 0)
            .unwrap_or(session.info.queue_limit)
    }

    /// Counts a chunk as in hand until the guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>, cost: u64) -> Outstanding {
        self.outstanding.fetch_add(cost, Ordering::Relaxed);
        Outstanding {
            replica: Arc::clone(self),
            cost,
        }
    }

    /// Runs one chunk. A broken connection takes the replica down at once.
    pub(crate) async fn run(
        &self,
        session: &Arc<Session>,
        message: RunRequest,
        options: &CallOptions,
    ) -> Result<RunResponse, Error> {
        let mut request = Request::new(message);
        request.set_timeout(options.deadline.saturating_duration_since(Instant::now()));
        if let Some(traceparent) = &options.traceparent {
            request
                .metadata_mut()
                .insert(TRACEPARENT, traceparent.clone());
        }
        match session.client.clone().run(request).await {
            Ok(response) => {
                let response = response.into_inner();
                self.note(response.load.as_ref());
                Ok(response)
            }
            Err(status) => Err(self.failed(session, &status, options.deadline)),
        }
    }

    fn failed(&self, session: &Arc<Session>, status: &Status, deadline: Instant) -> Error {
        if Instant::now() + DEADLINE_ROUNDING >= deadline {
            return deadline_exceeded();
        }
        let error = Error::from(status);
        if error.kind == ErrorKind::WrongSpace || is_broken(status) {
            // Only if nobody has set up a new connection meanwhile.
            if self
                .session()
                .is_some_and(|current| Arc::ptr_eq(&current, session))
            {
                self.set_down("a call failed; connecting again");
            }
            session.broken.notify_one();
        }
        if error.kind == ErrorKind::Unauthorized {
            // The gateway's fault, not its caller's, who has shown no such token.
            return internal("a worker refuses this gateway's token (FLOWERBED_WORKER_TOKEN)");
        }
        error
    }

    fn note(&self, load: Option<&Load>) {
        let Some(load) = load else { return };
        let queued: u64 = load.queued_cost.iter().sum();
        let own = self.outstanding.load(Ordering::Relaxed);
        *self.report.lock() = Some(Report {
            at: Instant::now(),
            others: queued.saturating_sub(own),
            cost_per_second: load.cost_per_second,
            queue_limit: load.queue_limit,
        });
    }
}

/// A chunk in hand.
#[derive(Debug)]
pub(crate) struct Outstanding {
    replica: Arc<Replica>,
    cost: u64,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        self.replica
            .outstanding
            .fetch_sub(self.cost, Ordering::Relaxed);
    }
}

/// The request's own time ran out.
pub(crate) fn deadline_exceeded() -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        "the request's time ran out; allow more, or ask for less",
    )
}

/// Whether the transport failed, not the worker: Tulip's own errors carry the trailer.
fn is_broken(status: &Status) -> bool {
    status.metadata().get_bin(ERROR_TRAILER).is_none()
        && matches!(
            status.code(),
            Code::Unavailable
                | Code::Unknown
                | Code::Cancelled
                | Code::Internal
                | Code::DataLoss
                | Code::Aborted
        )
}
