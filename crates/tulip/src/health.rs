//! Readiness that touches the device: serving only while real steps give right rows.
//!
//! When no step has run for a while, a one-token probe goes to the head of the online lane. Its row
//! is compared with the one taken at the start. A step that takes too long, and queued work that nobody
//! asks for, mean that the device or the thread that drives it hangs: health turns red, who waits is told,
//! and the process is given up.

use std::sync::Arc;
use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, v1};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic_health::server::HealthReporter;

use crate::chunk::Chunk;
use crate::command::{Command, CommandSender, Submission};
use crate::config::WorkerConfig;
use crate::metrics::Metrics;
use crate::state::{Phase, State};

/// Name under which health is served; the empty name means the whole server.
pub const SERVICE_NAME: &str = "flowerbed.v1.Inference";

/// A good step this old no longer proves anything.
const FRESH: Duration = Duration::from_secs(10);
/// Idle time after which a probe is sent: half of [`FRESH`], so that one may be late.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(250);
/// Probes in a row that the engine fails before the worker is given up: its weights or its device
/// give no good rows.
const MAX_FAILED_PROBES: u32 = 3;
/// A step may take this many times what a full one takes at the measured rate.
const STEP_LIMIT_IN_FULL_STEPS: f64 = 20.0;
/// The steps that are in flight when the device fails come back with errors, unless it hangs too.
const MAX_FAULTED_STEP: Duration = Duration::from_secs(5);
/// Time for the answers to leave before a hung process is given up.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Span over which the device's share of busy time is taken.
const BUSY_SPAN: Duration = Duration::from_secs(5);
/// A probe's row may differ by its bucket, not by more.
const MIN_COSINE: f64 = 0.999;

/// See the module.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) config: Arc<WorkerConfig>,
    pub(crate) state: Arc<State>,
    pub(crate) commands: CommandSender,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) reporter: HealthReporter,
    /// Ends the process; what hangs cannot be stopped from within.
    pub(crate) end_process: fn(),
}

// === impl Health ===

impl Health {
    /// Publishes readiness until the worker drains or its device fails, and watches the steps.
    pub(crate) async fn run(self) {
        tokio::join!(self.publish_readiness(), self.watch_steps());
    }

    async fn publish_readiness(&self) {
        let mut phase = self.state.watch_phase();
        let mut golden: Option<Vec<f32>> = None;
        let mut published = None;
        let mut num_failed = 0;
        loop {
            if *phase.borrow_and_update() != Phase::Serving {
                break;
            }
            let is_stale = self
                .state
                .since_good_step()
                .is_none_or(|age| age >= PROBE_AFTER);
            if golden.is_none() || is_stale {
                let probed = tokio::select! {
                    probed = self.probe() => probed,
                    _ = phase.changed() => continue,
                };
                match (probed, &golden) {
                    (Ok(row), None) => golden = Some(row),
                    (Ok(row), Some(golden)) => {
                        let cosine = cosine(&row, golden);
                        if cosine.is_nan() || cosine < MIN_COSINE {
                            let reason = format!("a probe's row has cosine {cosine} to the first");
                            self.give_up(reason).await;
                        }
                    }
                    (Err(error), _) => {
                        tracing::warn!(%error, "a probe failed");
                        let is_engine = error.kind == ErrorKind::EngineFailed;
                        num_failed = if is_engine { num_failed + 1 } else { 0 };
                        if num_failed >= MAX_FAILED_PROBES {
                            self.give_up(format!("{num_failed} probes in a row failed"))
                                .await;
                        }
                    }
                }
            }
            // A step within its limit (`watch_steps`) is no reason for doubt, however long it takes.
            let is_fresh = self.state.since_good_step().is_some_and(|age| age < FRESH)
                || self.state.oldest_step().is_some();
            let is_serving = golden.is_some() && is_fresh && !self.state.is_faulted();
            if published.replace(is_serving) != Some(is_serving) {
                self.publish(is_serving).await;
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                _ = phase.changed() => {}
            }
        }
        self.publish(false).await;
    }

    /// Gives the process up when a step takes longer than its limit, even while draining, or when the
    /// thread that pulls batches does not come back for as long.
    async fn watch_steps(&self) {
        let limit = self.step_limit();
        let mut span = (Instant::now(), Duration::ZERO);
        loop {
            tokio::time::sleep(POLL).await;
            if span.0.elapsed() >= BUSY_SPAN {
                let busy = self.state.busy();
                let ratio = (busy - span.1).as_secs_f64() / span.0.elapsed().as_secs_f64();
                self.metrics.device_busy(ratio.min(1.0));
                self.metrics.run_upkeep();
                span = (Instant::now(), busy);
            }
            let limit = if self.state.is_faulted() {
                limit.min(MAX_FAULTED_STEP)
            } else {
                limit
            };
            let is_over = |age: Option<Duration>| age.is_some_and(|age| age > limit);
            let hanging = if is_over(self.state.oldest_step()) {
                Some("a step takes longer than its limit")
            } else if is_over(self.state.neglected()) {
                Some("work is queued and the thread that pulls batches does not come for it")
            } else {
                None
            };
            if let Some(reason) = hanging {
                tracing::error!(?limit, reason, "giving the process up");
                self.publish(false).await;
                self.give_up(reason.to_owned()).await;
                tokio::time::sleep(LAST_WORDS).await;
                (self.end_process)();
                return;
            }
        }
    }

    /// The configured limit, or more where a full step of this model takes long here anyway.
    #[allow(clippy::cast_precision_loss, reason = "budgets are far below 2^52")]
    fn step_limit(&self) -> Duration {
        let WorkerConfig {
            saturation_batch_tokens,
            max_batch_tokens,
            cost_per_second,
            ..
        } = *self.config;
        let largest = saturation_batch_tokens.max(max_batch_tokens) as f64;
        let full_step_s = if cost_per_second > 0.0 {
            largest / cost_per_second
        } else {
            0.0
        };
        let limit_s = self
            .config
            .step_timeout
            .as_secs_f64()
            .max(STEP_LIMIT_IN_FULL_STEPS * full_step_s);
        Duration::try_from_secs_f64(limit_s).unwrap_or(Duration::MAX)
    }

    /// Fails everybody who waits; the thread that pulls batches is told that there are no more.
    async fn give_up(&self, reason: String) {
        // Without a dispatcher there is nobody left to tell.
        let _ = self.commands.send(Command::GiveUp(reason)).await;
    }

    async fn publish(&self, is_serving: bool) {
        let status = if is_serving {
            tonic_health::ServingStatus::Serving
        } else {
            tonic_health::ServingStatus::NotServing
        };
        tracing::info!(is_serving, "health");
        for name in ["", SERVICE_NAME] {
            self.reporter.set_service_status(name, status).await;
        }
    }

    async fn probe(&self) -> Result<Vec<f32>, Error> {
        let (reply, answer) = oneshot::channel();
        let submission = Submission {
            chunk: Chunk::probe(&self.config.model),
            deadline: Instant::now() + PROBE_TIMEOUT,
            reply,
            is_probe: true,
        };
        let gone = || Error::new(ErrorKind::Unavailable, "the dispatcher is gone");
        self.commands
            .send(Command::Submit(submission))
            .await
            .map_err(|_| gone())?;
        let response = tokio::time::timeout(PROBE_TIMEOUT, answer)
            .await
            .map_err(|_| Error::new(ErrorKind::DeadlineExceeded, "no step in time"))?
            .map_err(|_| gone())??;
        Ok(first_row(&response))
    }
}

fn first_row(response: &v1::RunResponse) -> Vec<f32> {
    let data = response
        .outputs
        .first()
        .map_or(&[][..], |output| &output.data);
    data.as_chunks::<4>()
        .0
        .iter()
        .map(|word| f32::from_le_bytes(*word))
        .collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        x.iter()
            .zip(y)
            .map(|(x, y)| f64::from(*x) * f64::from(*y))
            .sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
