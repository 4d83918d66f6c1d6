//! What came of one stream: counts and percentiles, printed as one JSON object.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::time::Instant;

use crate::spread::Spread;

const MAX_REASONS: usize = 8;
/// Requests that never left: the client's own limit of open ones was reached.
const NOT_SENT: &str = "not sent";

/// How one request ended.
#[derive(Clone, Debug)]
pub enum End {
    /// With a whole answer.
    Answered(Answered),
    /// Without one; at which step.
    Failed(&'static str),
    /// By our own hanging up.
    HungUp,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// Whether the plan expects it.
    pub is_expected: bool,
    /// Tokens of a right answer, or what is wrong with it.
    pub checked: Result<u64, String>,
    /// Of the request; counted where the answer is 200.
    pub num_rows: usize,
    /// `x-flowerbed-queue-us` and `x-flowerbed-step-us`.
    pub server_us: Option<(u64, u64)>,
}

/// Times of one request.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// When it should have been sent.
    pub intended: Instant,
    /// When it was.
    pub sent: Instant,
    /// When its answer was whole.
    pub ended: Instant,
}

/// Collects the ends of one stream.
#[derive(Debug)]
pub struct Tally {
    started: Instant,
    ended: Instant,
    last_answer: Instant,
    report: Report,
    num_rows: usize,
    num_tokens: u64,
    latencies: Vec<u64>,
    lags: Vec<u64>,
    queues: Vec<u64>,
    steps: Vec<u64>,
    parts: Vec<Parts>,
}

/// Where the time of one answer went, microseconds.
#[derive(Clone, Copy, Debug)]
struct Parts {
    latency: u64,
    lag: u64,
    queue: u64,
    step: u64,
}

impl Parts {
    fn rest(&self) -> u64 {
        self.latency
            .saturating_sub(self.lag + self.queue + self.step)
    }
}

/// Where the time of the slowest hundredth went: means, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Tail {
    /// All of it.
    pub latency_ms: f64,
    /// Before the client sent the request.
    pub lag_ms: f64,
    /// In the worker's queue.
    pub queue_ms: f64,
    /// In the step.
    pub step_ms: f64,
    /// Gateway, network, and the client itself.
    pub rest_ms: f64,
}

/// Counts and percentiles of one stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Of the stream.
    pub name: String,
    /// When the schedule began, in seconds since 1970: for reports of several processes.
    pub began_s: f64,
    /// From the start of the schedule to the last end.
    pub seconds: f64,
    /// Every request that left.
    pub sent: u64,
    /// With a status that the plan expects and nothing wrong.
    pub ok: u64,
    /// Answers whose status the plan does not expect.
    pub unexpected: u64,
    /// Answers that are not what they should be.
    pub wrong: u64,
    /// Of the first wrong ones.
    pub wrong_reasons: Vec<String>,
    /// All whole answers.
    pub by_status: BTreeMap<u16, u64>,
    /// Requests without a whole answer.
    pub errors: BTreeMap<&'static str, u64>,
    /// Requests given up by the caller.
    pub hung_up: u64,
    /// Answers a second.
    pub achieved_per_second: f64,
    /// Vectors a second.
    pub rows_per_second: f64,
    /// Tokens a second, as the answers' usage counts them.
    pub tokens_per_second: f64,
    /// Longest time without an answer.
    pub longest_gap_s: f64,
    /// From the intended time to the whole answer.
    pub latency_ms: Spread,
    /// How late the client itself was.
    pub lag_ms: Spread,
    /// Wait in the worker's queue, as the answers tell.
    pub queue_ms: Spread,
    /// Time of the steps, as the answers tell.
    pub step_ms: Spread,
    /// What is left of the latency without lag, queue and step.
    pub rest_ms: Spread,
    /// Of answers that tell of queue and step.
    pub tail: Tail,
    /// By this stream.
    pub connections: u64,
    /// Those that ended with an error.
    pub connections_broken: u64,
}

impl Tally {
    /// Of a stream that starts then.
    #[must_use]
    pub fn new(name: &str, started: Instant) -> Self {
        Self {
            started,
            ended: started,
            last_answer: started,
            report: Report {
                name: name.to_owned(),
                ..Report::default()
            },
            num_rows: 0,
            num_tokens: 0,
            latencies: Vec::new(),
            lags: Vec::new(),
            queues: Vec::new(),
            steps: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Counts a request that the client itself held back.
    pub fn not_sent(&mut self) {
        *self.report.errors.entry(NOT_SENT).or_default() += 1;
    }

    /// Counts one end.
    pub fn add(&mut self, times: Times, end: End) {
        let Times {
            intended,
            sent,
            ended,
        } = times;
        let report = &mut self.report;
        report.sent += 1;
        self.ended = self.ended.max(ended);
        let lag = micros(sent.saturating_duration_since(intended));
        self.lags.push(lag);
        let answered = match end {
            End::Answered(answered) => answered,
            End::Failed(step) => {
                *report.errors.entry(step).or_default() += 1;
                return;
            }
            End::HungUp => {
                report.hung_up += 1;
                return;
            }
        };
        *report.by_status.entry(answered.status).or_default() += 1;
        let latency = micros(ended.saturating_duration_since(intended));
        self.latencies.push(latency);
        let gap = ended.saturating_duration_since(self.last_answer);
        report.longest_gap_s = report.longest_gap_s.max(gap.as_secs_f64());
        self.last_answer = self.last_answer.max(ended);
        if let Some((queue, step)) = answered.server_us {
            self.queues.push(queue);
            self.steps.push(step);
            self.parts.push(Parts {
                latency,
                lag,
                queue,
                step,
            });
        }
        match answered.checked {
            Ok(num_tokens) => {
                if answered.status == 200 {
                    self.num_rows += answered.num_rows;
                    self.num_tokens += num_tokens;
                }
                report.ok += u64::from(answered.is_expected);
            }
            Err(reason) => {
                report.wrong += 1;
                if report.wrong_reasons.len() < MAX_REASONS {
                    report.wrong_reasons.push(reason);
                }
            }
        }
        report.unexpected += u64::from(!answered.is_expected);
    }

    /// The report, with what the connections of the stream counted.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "counts of one run are far below 2^52"
    )]
    pub fn finish(self, (num_opened, num_broken): (u64, u64)) -> Report {
        let seconds = (self.ended - self.started).as_secs_f64();
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let began = (SystemTime::now() - self.started.elapsed()).duration_since(UNIX_EPOCH);
        Report {
            began_s: began.unwrap_or_default().as_secs_f64(),
            seconds,
            achieved_per_second: rate(self.latencies.len() as f64),
            rows_per_second: rate(self.num_rows as f64),
            tokens_per_second: rate(self.num_tokens as f64),
            latency_ms: Spread::of(self.latencies),
            lag_ms: Spread::of(self.lags),
            queue_ms: Spread::of(self.queues),
            step_ms: Spread::of(self.steps),
            rest_ms: Spread::of(self.parts.iter().map(Parts::rest).collect()),
            tail: Tail::of(self.parts),
            connections: num_opened,
            connections_broken: num_broken,
            ..self.report
        }
    }
}

impl Tail {
    #[allow(
        clippy::cast_precision_loss,
        reason = "microseconds of one run are far below 2^52"
    )]
    fn of(mut parts: Vec<Parts>) -> Self {
        parts.sort_unstable_by_key(|parts| std::cmp::Reverse(parts.latency));
        parts.truncate(parts.len().div_ceil(100));
        let mean = |part: fn(&Parts) -> u64| {
            let sum: u64 = parts.iter().map(part).sum();
            sum as f64 / 1_000.0 / parts.len().max(1) as f64
        };
        Self {
            latency_ms: mean(|parts| parts.latency),
            lag_ms: mean(|parts| parts.lag),
            queue_ms: mean(|parts| parts.queue),
            step_ms: mean(|parts| parts.step),
            rest_ms: mean(Parts::rest),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_counted_once() {
        let start = Instant::now();
        let times = |ms| Times {
            intended: start,
            sent: start + Duration::from_millis(1),
            ended: start + Duration::from_millis(ms),
        };
        let answered = |status, checked| {
            End::Answered(Answered {
                status,
                is_expected: status == 200,
                checked,
                num_rows: 2,
                server_us: (status == 200).then_some((500, 1_500)),
            })
        };
        let mut tally = Tally::new("s", start);
        tally.add(times(100), answered(200, Ok(10)));
        tally.add(times(500), answered(503, Ok(0)));
        tally.add(times(700), answered(200, Err("bad".to_owned())));
        tally.add(times(800), End::Failed("no answer"));
        tally.add(times(1_000), End::HungUp);
        tally.not_sent();
        let report = tally.finish((1, 0));
        assert_eq!(
            (report.sent, report.ok, report.wrong, report.unexpected),
            (5, 1, 1, 1)
        );
        assert_eq!(report.by_status, BTreeMap::from([(200, 2), (503, 1)]));
        assert_eq!(
            report.errors,
            BTreeMap::from([("no answer", 1), (NOT_SENT, 1)])
        );
        assert_eq!(report.hung_up, 1);
        assert!((report.longest_gap_s - 0.4).abs() < 1e-6);
        assert!((report.rows_per_second - 2.0).abs() < 1e-6);
        assert!((report.latency_ms.max - 700.0).abs() < 1e-6);
        assert!((report.lag_ms.max - 1.0).abs() < 1e-6);
        assert!((report.queue_ms.p50 - 0.5).abs() < 1e-9);
        // The slowest of three took 700 ms: 1 before it left, 0.5 in the queue, 1.5 in the step.
        assert!((report.tail.latency_ms - 700.0).abs() < 1e-6);
        assert!((report.tail.rest_ms - 697.0).abs() < 1e-6);
        assert!((report.rest_ms.max - 697.0).abs() < 1e-6);
    }
}
