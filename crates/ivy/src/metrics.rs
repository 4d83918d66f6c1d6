//! Names, meanings and buckets of the gateway's metrics; every recording goes through here.
//!
//! What happens inside a worker is measured there; `status.rs` fetches it. The recorder belongs to
//! one gateway and is no global. Label values are bounded: models are the
//! served id or `unknown`, routes are those of the table or `unknown`.

use std::time::Duration;

use ::metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
    with_local_recorder,
};
use flowerbed_protocol::ErrorKind;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// Answered requests, by HTTP status; 499 where the caller hung up.
const REQUESTS: &str = "flowerbed_requests_total";
/// Requests whose answer is not made yet.
const REQUESTS_OPEN: &str = "flowerbed_requests_open";
/// Time from a request's head to its answer.
const REQUEST_SECONDS: &str = "flowerbed_request_seconds";
/// Time in which the texts of a request became ids, waiting for a thread included.
const TOKENIZE_SECONDS: &str = "flowerbed_tokenize_seconds";
/// Inputs that were cut to the model's length.
const TRUNCATED: &str = "flowerbed_truncated_total";
/// Ids handed to the workers.
const INPUT_TOKENS: &str = "flowerbed_input_tokens_total";
/// Requests turned away, by kind of error.
const SHED: &str = "flowerbed_shed_total";
/// 1 while a worker answers and is ready, else 0.
const REPLICA_UP: &str = "flowerbed_replica_up";

/// Seconds; a short query on a GPU takes 2 ms, the request timeout is 60 s.
const BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0,
];

/// The metrics of one gateway.
pub(crate) struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// What one HTTP request is counted under.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    pub(crate) model: String,
    pub(crate) route: String,
    pub(crate) lane: &'static str,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let builder = PrometheusBuilder::new();
        // Fails only for an empty list; without buckets the exporter would render summaries.
        let builder = builder
            .set_buckets(&BUCKETS)
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

    /// A request came in; [`Metrics::request`] counts its end.
    pub(crate) fn request_began(&self) {
        with_local_recorder(&self.recorder, || gauge!(REQUESTS_OPEN).increment(1));
    }

    pub(crate) fn request(&self, labels: &Labels, code: u16, elapsed: Duration) {
        let Labels { model, route, lane } = labels.clone();
        with_local_recorder(&self.recorder, || {
            gauge!(REQUESTS_OPEN).decrement(1);
            counter!(REQUESTS, "model" => model.clone(), "route" => route.clone(), "lane" => lane,
                "code" => code.to_string())
            .increment(1);
            histogram!(REQUEST_SECONDS, "model" => model, "route" => route, "lane" => lane)
                .record(elapsed);
        });
    }

    pub(crate) fn tokenized(&self, elapsed: Duration, num_tokens: usize, num_truncated: usize) {
        with_local_recorder(&self.recorder, || {
            histogram!(TOKENIZE_SECONDS).record(elapsed);
            counter!(INPUT_TOKENS).increment(num_tokens as u64);
            counter!(TRUNCATED).increment(num_truncated as u64);
        });
    }

    pub(crate) fn shed(&self, reason: ErrorKind) {
        with_local_recorder(&self.recorder, || {
            counter!(SHED, "reason" => reason.name()).increment(1);
        });
    }

    pub(crate) fn replica_up(&self, replica: &str, is_up: bool) {
        with_local_recorder(&self.recorder, || {
            gauge!(REPLICA_UP, "replica" => replica.to_owned()).set(if is_up { 1.0 } else { 0.0 });
        });
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

fn describe() {
    let seconds = Unit::Seconds;
    describe_counter!(
        REQUESTS,
        "Answered requests by HTTP status; 499 where the caller hung up"
    );
    describe_gauge!(REQUESTS_OPEN, "Requests whose answer is not made yet");
    describe_histogram!(
        REQUEST_SECONDS,
        seconds,
        "Time from a request's head to its answer"
    );
    describe_histogram!(
        TOKENIZE_SECONDS,
        seconds,
        "Time in which a request's texts became ids"
    );
    describe_counter!(TRUNCATED, "Inputs that were cut to the model's length");
    describe_counter!(INPUT_TOKENS, "Token ids handed to the workers");
    describe_counter!(SHED, "Requests turned away, by kind of error");
    describe_gauge!(REPLICA_UP, "1 while a worker answers and is ready");
}

/// Every series whose labels are known is there from the start, so that a rate over its first event
/// is right.
fn begin_at_zero() {
    gauge!(REQUESTS_OPEN).set(0.0);
    drop(histogram!(TOKENIZE_SECONDS));
    for name in [TRUNCATED, INPUT_TOKENS] {
        counter!(name).absolute(0);
    }
    for reason in ErrorKind::ALL.into_iter().filter(|kind| kind.is_shed()) {
        counter!(SHED, "reason" => reason.name()).absolute(0);
    }
}
