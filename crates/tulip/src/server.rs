//! Starts and stops the whole: runtime, listener, dispatcher, waiters, health.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TryRecvError};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use flowerbed_protocol::limits;
use flowerbed_protocol::settings::Secret;
use flowerbed_protocol::v1::inference_server::InferenceServer;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::batch::Batch;
use crate::command::{Command, CommandSender};
use crate::config::WorkerConfig;
use crate::deadline;
use crate::dispatcher::Dispatcher;
use crate::fault::StepFault;
use crate::health::{Health, SERVICE_NAME};
use crate::listener::Listener;
use crate::metrics::Metrics;
use crate::scheduler::Stream;
use crate::scrape;
use crate::service::{Service, check_token};
use crate::state::{Phase, State};
use crate::waiter::{self, Launched, PendingRows};

/// The gateway's side of a connection is idle in the kernel for a while; two threads keep up.
const RUNTIME_THREADS: usize = 1;
/// Answers that are already made get this long to leave.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// A running inference server. The thread that owns the device pulls batches from it.
#[derive(Debug)]
pub struct Tulip {
    address: String,
    state: Arc<State>,
    commands: CommandSender,
    reporter: HealthReporter,
    waiters: HashMap<Stream, SyncSender<Launched>>,
    pulls: Mutex<Pulls>,
    handle: Handle,
    running: Mutex<Option<Running>>,
}

#[derive(Debug, Default)]
struct Pulls {
    waiting: Option<mpsc::Receiver<Batch>>,
    taken: HashMap<u64, (Stream, Instant)>,
}

#[derive(Debug)]
struct Running {
    runtime: Runtime,
    serving: JoinHandle<()>,
}

/// Outcome of one wait for a batch.
#[derive(Debug)]
pub enum Pull {
    /// Run this.
    Batch(Box<Batch>),
    /// Nothing yet; ask again.
    Nothing,
    /// There will be none any more.
    Drained,
}

// === impl Tulip ===

impl Tulip {
    /// Binds and serves. `give_up` ends the process, should a step hang.
    ///
    /// # Errors
    /// The address cannot be bound, or a thread cannot be started.
    pub fn start(config: WorkerConfig, give_up: fn()) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("tulip")
            .enable_all()
            .build()?;
        let config = Arc::new(config);
        let state = Arc::new(State::new(
            config.cost_per_second,
            config.max_batch_tokens,
            config.spin,
        ));
        let metrics = Arc::new(Metrics::new());
        let (commands, receiver) = Dispatcher::channel();
        let mut waiters = HashMap::new();
        for stream in &config.streams {
            let waiter = waiter::spawn(*stream, config.steps_in_flight, commands.clone())?;
            waiters.insert(*stream, waiter);
        }
        let (reporter, health_service) = tonic_health::server::health_reporter();
        // A gateway that asks before the first probe must find the name.
        for name in ["", SERVICE_NAME] {
            let status = ServingStatus::NotServing;
            runtime.block_on(reporter.set_service_status(name, status));
        }
        let service = Service {
            config: Arc::clone(&config),
            state: Arc::clone(&state),
            commands: commands.clone(),
        };
        let inference = InferenceServer::new(service)
            .max_decoding_message_size(limits::MAX_MESSAGE_BYTES)
            .max_encoding_message_size(limits::MAX_MESSAGE_BYTES);
        let grpc = Routes::new(health_service).add_service(InterceptedService::new(
            inference,
            check_token(config.token.as_ref().map(Secret::expose)),
        ));
        let default_timeout = config.request_timeout;
        let router = grpc
            .into_axum_router()
            .merge(scrape::route(
                &metrics,
                config.token.as_ref().map(Secret::expose),
            ))
            .layer(tower::util::MapRequestLayer::new(
                move |request: Request| deadline::set(request, default_timeout),
            ));
        let guard = runtime.enter();
        let mut phase = state.watch_phase();
        let draining = async move {
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
        };
        let (listener, address) = runtime.block_on(Listener::bind(&config.listen))?;
        if let Some(address) = &config.metrics_listen {
            let (listener, address) = runtime.block_on(Listener::bind(address))?;
            tracing::info!(address, "metrics are served");
            let router: Router = scrape::route(&metrics, None);
            // Whoever watches a drain reads them to its end.
            tokio::spawn(listener.serve(router, std::future::pending()));
        }
        let serving = tokio::spawn(listener.serve(router, draining));
        let dispatcher = Dispatcher::new(
            Arc::clone(&config),
            Arc::clone(&state),
            Arc::clone(&metrics),
        );
        let kept = Arc::clone(&state);
        tokio::spawn(async move { kept.awake.keep().await });
        let dispatching = tokio::spawn(dispatcher.run(receiver));
        let watched = Arc::clone(&state);
        tokio::spawn(async move {
            if dispatching.await.is_err() {
                // It panicked: nobody is served any more, which must not look like a drain.
                watched.set_faulted();
            }
        });
        tokio::spawn(
            Health {
                config,
                state: Arc::clone(&state),
                commands: commands.clone(),
                metrics,
                reporter: reporter.clone(),
                end_process: give_up,
            }
            .run(),
        );
        drop(guard);
        Ok(Self {
            address,
            state,
            commands,
            reporter,
            waiters,
            pulls: Mutex::default(),
            handle: runtime.handle().clone(),
            running: Mutex::new(Some(Running { runtime, serving })),
        })
    }

    /// Where it listens, with the real port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Waits at most `patience` for the next batch.
    pub fn next_batch(&self, patience: Duration) -> Pull {
        let waiting = self.pulls.lock().waiting.take();
        let receiver = match waiting {
            Some(receiver) => receiver,
            None => {
                let (sender, receiver) = mpsc::sync_channel(1);
                if self
                    .commands
                    .blocking_send(Command::NextBatch(sender))
                    .is_err()
                {
                    return Pull::Drained;
                }
                receiver
            }
        };
        match self.receive(&receiver, patience) {
            Ok(batch) => {
                let taken = (batch.plan.stream, Instant::now());
                self.pulls.lock().taken.insert(batch.id, taken);
                Pull::Batch(Box::new(batch))
            }
            Err(RecvTimeoutError::Timeout) => {
                self.pulls.lock().waiting = Some(receiver);
                Pull::Nothing
            }
            Err(RecvTimeoutError::Disconnected) => Pull::Drained,
        }
    }

    fn receive(
        &self,
        receiver: &mpsc::Receiver<Batch>,
        patience: Duration,
    ) -> Result<Batch, RecvTimeoutError> {
        let end = Instant::now() + patience;
        while self.state.awake.is_awake() && Instant::now() < end {
            match receiver.try_recv() {
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Ok(batch) => return Ok(batch),
            }
        }
        receiver.recv_timeout(end.saturating_duration_since(Instant::now()))
    }

    /// Hands over what a step gave, to be answered when the device is done.
    ///
    /// Returns false where the batch is unknown or was answered already.
    pub fn launched(
        &self,
        batch_id: u64,
        rows: Box<dyn PendingRows>,
        mode: String,
        padding_tokens: u64,
    ) -> bool {
        let Some((stream, started)) = self.pulls.lock().taken.remove(&batch_id) else {
            return false;
        };
        let launched = Launched {
            batch_id,
            started,
            rows,
            mode,
            padding_tokens,
        };
        self.waiters
            .get(&stream)
            .is_some_and(|waiter| waiter.send(launched).is_ok())
    }

    /// Tells that a step raised. Returns false where the batch is unknown.
    pub fn failed(&self, batch_id: u64, reason: String, fault: StepFault) -> bool {
        let is_known = self.pulls.lock().taken.remove(&batch_id).is_some();
        let command = Command::Failed {
            batch_id,
            reason,
            fault,
        };
        is_known && self.commands.blocking_send(command).is_ok()
    }

    /// Refuses new work from now on; batches come until the queue is empty. What is still there
    /// after `patience` is refused too.
    pub fn drain(&self, patience: Duration) {
        self.state.set_draining();
        // Only a nudge for an idle dispatcher: with a full channel it is awake anyway.
        let _ = self.commands.try_send(Command::Drain);
        let commands = self.commands.clone();
        self.handle.spawn(async move {
            tokio::time::sleep(patience).await;
            // The dispatcher may have ended meanwhile.
            let _ = commands.send(Command::Cut).await;
        });
    }

    /// Whether a drain was too short for what was queued.
    #[must_use]
    pub fn was_cut(&self) -> bool {
        self.state.was_cut()
    }

    /// Whether the device failed, so that only a restart helps.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.state.is_faulted()
    }

    /// Stops serving; answers that are made still leave. Safe to call twice.
    pub fn stop(&self) {
        self.drain(Duration::ZERO);
        let Some(Running { runtime, serving }) = self.running.lock().take() else {
            return;
        };
        runtime.block_on(async {
            // Health watchers would keep their connections open for ever.
            let mut reporter = self.reporter.clone();
            for name in ["", SERVICE_NAME] {
                reporter.clear_service_status(name).await;
            }
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, serving).await;
        });
        runtime.shutdown_timeout(Duration::from_millis(500));
        if let Some(path) = self.address.strip_prefix("unix:") {
            let _ = std::fs::remove_file(path);
        }
    }
}
