//! Names, meanings and buckets of the worker's metrics; every recording goes through here.
//!
//! The recorder belongs to one worker and is no global. All label values are words of this crate.

use std::time::Duration;

use ::metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    with_local_recorder,
};
use metrics_exporter_prometheus::{
    Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use crate::scheduler::Lane;

/// Wait of a sequence from its arrival to the start of its step.
const QUEUE_SECONDS: &str = "flowerbed_queue_seconds";
/// Cost that waits, by lane.
const QUEUE_TOKENS: &str = "flowerbed_queue_tokens";
/// Time of one step on the device.
const STEP_SECONDS: &str = "flowerbed_step_seconds";
/// Tokens of one step: of sequences, and of padding.
const STEP_TOKENS: &str = "flowerbed_step_tokens";
/// Time in which the rows of a step came from the device.
const RESULT_COPY_SECONDS: &str = "flowerbed_result_copy_seconds";
/// Chunks that got no result, by reason.
const SHED: &str = "flowerbed_chunks_shed_total";
/// Share of the last seconds in which a step ran.
const DEVICE_BUSY: &str = "flowerbed_device_busy_ratio";

/// How a step was launched.
const STEP_MODES: [&str; 3] = ["eager", "capture", "replay"];

/// Seconds; a query's step takes 1 ms on a GPU, a long batch's on a CPU seconds.
const SECONDS: [f64; 18] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0,
    5.0, 10.0, 60.0,
];
/// Tokens; the knees of all devices lie within.
const TOKENS: [f64; 12] = [
    8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 32768.0,
];

/// Why a chunk got no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shed {
    /// The queue was full.
    Overloaded,
    /// Its deadline passed while it was queued.
    DeadlineExceeded,
    /// Its caller hung up while it was queued.
    Cancelled,
    /// The worker was draining or its device had failed.
    Unavailable,
    /// The step that held it failed.
    EngineFailed,
    /// There was not enough memory for one of its sequences, even alone.
    OutOfMemory,
}

impl Shed {
    const ALL: [Self; 6] = [
        Self::Overloaded,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Unavailable,
        Self::EngineFailed,
        Self::OutOfMemory,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::Unavailable => "unavailable",
            Self::EngineFailed => "engine_failed",
            Self::OutOfMemory => "out_of_memory",
        }
    }
}

/// The metrics of one worker.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // Both fail only for an empty list; without buckets the exporter would render summaries.
        let builder = PrometheusBuilder::new()
            .set_buckets(&SECONDS)
            .and_then(|builder| {
                builder.set_buckets_for_metric(Matcher::Full(STEP_TOKENS.to_owned()), &TOKENS)
            })
            .unwrap_or_else(|_| PrometheusBuilder::new());
        let recorder = builder.build_recorder();
        with_local_recorder(&recorder, || {
            describe();
            begin_at_zero();
        });
        let handle = recorder.handle();
        Self { recorder, handle }
    }

    /// Prometheus text.
    pub(crate) fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds recorded samples into buckets, which bounds memory where nobody scrapes.
    pub(crate) fn run_upkeep(&self) {
        self.handle.run_upkeep();
    }

    pub(crate) fn step(&self, mode: &str, ran_for: Duration, copied_in: Duration) {
        let mode = STEP_MODES.into_iter().find(|known| *known == mode);
        with_local_recorder(&self.recorder, || {
            histogram!(STEP_SECONDS, "mode" => mode.unwrap_or("unknown")).record(ran_for);
            histogram!(RESULT_COPY_SECONDS).record(copied_in);
        });
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "token counts are far below 2^52"
    )]
    pub(crate) fn step_tokens(&self, num_tokens: usize, padding_tokens: u64) {
        with_local_recorder(&self.recorder, || {
            histogram!(STEP_TOKENS, "kind" => "real").record(num_tokens as f64);
            histogram!(STEP_TOKENS, "kind" => "padding").record(padding_tokens as f64);
        });
    }

    pub(crate) fn queued_for(&self, lane: Lane, waited: Duration) {
        with_local_recorder(&self.recorder, || {
            histogram!(QUEUE_SECONDS, "lane" => lane.name()).record(waited);
        });
    }

    #[allow(clippy::cast_precision_loss, reason = "costs are far below 2^52")]
    pub(crate) fn queued_cost(&self, queued_cost: [u64; 3]) {
        with_local_recorder(&self.recorder, || {
            for (lane, cost) in Lane::ALL.into_iter().zip(queued_cost) {
                gauge!(QUEUE_TOKENS, "lane" => lane.name()).set(cost as f64);
            }
        });
    }

    pub(crate) fn shed(&self, reason: Shed) {
        with_local_recorder(&self.recorder, || {
            counter!(SHED, "reason" => reason.name()).increment(1);
        });
    }

    pub(crate) fn device_busy(&self, ratio: f64) {
        with_local_recorder(&self.recorder, || gauge!(DEVICE_BUSY).set(ratio));
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

fn describe() {
    let seconds = Unit::Seconds;
    describe_histogram!(
        QUEUE_SECONDS,
        seconds,
        "Wait of a chunk's sequences for their step"
    );
    describe_gauge!(QUEUE_TOKENS, "Cost that waits, in tokens of dense work");
    describe_histogram!(STEP_SECONDS, seconds, "Time of one step on the device");
    describe_histogram!(STEP_TOKENS, "Tokens of one step");
    describe_histogram!(
        RESULT_COPY_SECONDS,
        seconds,
        "Time in which a step's rows came over"
    );
    describe_counter!(SHED, "Chunks that got no result, by reason");
    describe_gauge!(DEVICE_BUSY, "Share of the last seconds in which a step ran");
}

/// Every series is there from the start, so that a rate over its first event is right.
fn begin_at_zero() {
    for lane in Lane::ALL {
        drop(histogram!(QUEUE_SECONDS, "lane" => lane.name()));
        gauge!(QUEUE_TOKENS, "lane" => lane.name()).set(0.0);
    }
    for mode in STEP_MODES {
        drop(histogram!(STEP_SECONDS, "mode" => mode));
    }
    for kind in ["real", "padding"] {
        drop(histogram!(STEP_TOKENS, "kind" => kind));
    }
    drop(histogram!(RESULT_COPY_SECONDS));
    for reason in Shed::ALL {
        counter!(SHED, "reason" => reason.name()).absolute(0);
    }
    gauge!(DEVICE_BUSY).set(0.0);
}
