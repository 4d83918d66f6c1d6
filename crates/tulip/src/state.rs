//! Figures that the dispatcher writes and everybody reads, without a lock held across an await.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowerbed_protocol::{Awake, limits};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::timeline::StepRun;

/// Weight of the newest step in the measured rate.
const NEWEST: f64 = 0.1;
/// Steps smaller than this share of the budget say little about the rate of full ones.
const TYPICAL_SHARE: f64 = 0.25;

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    figures: Mutex<Figures>,
    phase: watch::Sender<Phase>,
    was_cut: AtomicBool,
    typical_cost: f64,
    /// Touched by every query.
    pub(crate) awake: Awake,
}

#[derive(Debug)]
struct Figures {
    cost_per_second: f64,
    last_good_step: Option<Instant>,
    oldest_start: Option<Instant>,    // of the steps in flight
    neglected_since: Option<Instant>, // while work is queued, nothing runs and nobody asks for it
    busy_since: Option<Instant>,      // while a step is in flight
    busy: Duration,                   // before that
}

/// What the worker is willing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Serving,
    Draining,
    Faulted,
}

// === impl State ===

impl State {
    #[allow(clippy::cast_precision_loss, reason = "budgets are far below 2^52")]
    pub(crate) fn new(cost_per_second: f64, max_batch_tokens: u64, spin: Duration) -> Self {
        Self {
            figures: Mutex::new(Figures {
                cost_per_second,
                last_good_step: None,
                oldest_start: None,
                neglected_since: None,
                busy_since: None,
                busy: Duration::ZERO,
            }),
            phase: watch::Sender::new(Phase::Serving),
            was_cut: AtomicBool::new(false),
            typical_cost: max_batch_tokens as f64 * TYPICAL_SHARE,
            awake: Awake::new(spin),
        }
    }

    /// Notes a step that gave rows.
    #[allow(clippy::cast_precision_loss, reason = "costs are far below 2^52")]
    pub(crate) fn count_step(&self, cost: u64, run: StepRun, finished: Instant) {
        let mut figures = self.figures.lock();
        figures.last_good_step = Some(finished);
        if let Some(device_cost) = run.device_cost
            && cost as f64 >= self.typical_cost
            && !run.ran_for.is_zero()
        {
            let rate = device_cost as f64 / run.ran_for.as_secs_f64();
            let old = figures.cost_per_second;
            figures.cost_per_second = if old > 0.0 {
                old + NEWEST * (rate - old)
            } else {
                rate
            };
        }
    }

    /// Notes when the oldest step in flight began, and when the last one landed.
    pub(crate) fn set_in_flight(&self, oldest_start: Option<Instant>, last_landed: Instant) {
        let mut figures = self.figures.lock();
        figures.oldest_start = oldest_start;
        if oldest_start.is_some() {
            figures.busy_since = figures.busy_since.or(oldest_start);
        } else if let Some(since) = figures.busy_since.take() {
            figures.busy += last_landed.saturating_duration_since(since);
        }
    }

    /// Age of the oldest step in flight.
    pub(crate) fn oldest_step(&self) -> Option<Duration> {
        self.figures.lock().oldest_start.map(|at| at.elapsed())
    }

    /// Notes whether work is queued that nobody runs and nobody asks for.
    pub(crate) fn set_neglected(&self, is_neglected: bool) {
        let mut figures = self.figures.lock();
        figures.neglected_since =
            is_neglected.then(|| figures.neglected_since.unwrap_or_else(Instant::now));
    }

    /// How long that has been so.
    pub(crate) fn neglected(&self) -> Option<Duration> {
        self.figures.lock().neglected_since.map(|at| at.elapsed())
    }

    /// Time in which at least one step was in flight, since the start.
    pub(crate) fn busy(&self) -> Duration {
        let figures = self.figures.lock();
        let now = figures.busy_since.map(|since| since.elapsed());
        figures.busy + now.unwrap_or_default()
    }

    pub(crate) fn cost_per_second(&self) -> f64 {
        self.figures.lock().cost_per_second
    }

    /// Cost that may wait, at the measured rate; see `limits::QUEUE_SECONDS`.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a rate times seconds is far below 2^52"
    )]
    pub(crate) fn queue_limit(&self, max_batch_tokens: u64) -> u64 {
        let at_rate = (self.cost_per_second() * limits::QUEUE_SECONDS) as u64;
        at_rate.max(2 * max_batch_tokens)
    }

    /// How long the device takes for this much work, at the measured rate.
    #[allow(clippy::cast_precision_loss, reason = "costs are far below 2^52")]
    pub(crate) fn time_to_run(&self, cost: u64) -> Duration {
        let rate = self.cost_per_second();
        let seconds = if rate > 0.0 { cost as f64 / rate } else { 1.0 };
        Duration::from_secs_f64(seconds.clamp(0.1, 60.0))
    }

    /// Time since the last step that gave rows; `None` before the first.
    pub(crate) fn since_good_step(&self) -> Option<Duration> {
        self.figures.lock().last_good_step.map(|at| at.elapsed())
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.phase.borrow() >= Phase::Draining
    }

    pub(crate) fn is_faulted(&self) -> bool {
        *self.phase.borrow() == Phase::Faulted
    }

    pub(crate) fn set_draining(&self) {
        self.advance(Phase::Draining);
    }

    pub(crate) fn set_faulted(&self) {
        self.advance(Phase::Faulted);
    }

    /// Notes that a drain ended before what was queued had run.
    pub(crate) fn set_cut(&self) {
        self.was_cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn was_cut(&self) -> bool {
        self.was_cut.load(Ordering::Relaxed)
    }

    pub(crate) fn watch_phase(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    fn advance(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            let is_later = phase > *current;
            *current = (*current).max(phase);
            is_later
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_device_is_busy_while_any_step_is_in_flight_and_counts_once() {
        let (state, start) = (State::new(0.0, 100, Duration::ZERO), Instant::now());
        let at = |seconds| start + seconds * SECOND;
        state.set_in_flight(Some(at(0)), at(0)); // the first of two streams
        tokio::time::advance(SECOND).await;
        assert_eq!(state.busy(), SECOND, "before it ends");
        state.set_in_flight(Some(at(0)), at(0)); // the second one
        tokio::time::advance(2 * SECOND).await;
        state.set_in_flight(Some(at(1)), at(2)); // the first has landed
        state.set_in_flight(None, at(3));
        tokio::time::advance(4 * SECOND).await;
        assert_eq!(state.busy(), 3 * SECOND);
        assert_eq!(state.oldest_step(), None);
        state.set_in_flight(Some(at(7)), at(3));
        tokio::time::advance(SECOND).await;
        assert_eq!(state.busy(), 4 * SECOND);
        assert_eq!(state.oldest_step(), Some(SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_neglected_from_the_first_moment_that_nobody_asks_for_it() {
        let state = State::new(0.0, 100, Duration::ZERO);
        for _ in 0..2 {
            state.set_neglected(false);
            assert_eq!(state.neglected(), None);
            state.set_neglected(true);
            tokio::time::advance(SECOND).await;
            state.set_neglected(true);
            tokio::time::advance(SECOND).await;
            assert_eq!(state.neglected(), Some(2 * SECOND));
        }
    }

    #[test]
    fn the_rate_is_learned_from_typical_steps_that_measure_the_device() {
        let (state, now) = (State::new(0.0, 100, Duration::ZERO), Instant::now());
        let run = |device_cost| StepRun {
            ran_for: SECOND,
            device_cost,
        };
        state.count_step(24, run(Some(24)), now);
        state.count_step(90, run(None), now);
        assert_eq!(state.cost_per_second().to_bits(), 0.0_f64.to_bits());
        state.count_step(90, run(Some(130)), now);
        assert_eq!(state.cost_per_second().to_bits(), 130.0_f64.to_bits());
        state.count_step(100, run(Some(230)), now);
        assert!((state.cost_per_second() - 140.0).abs() < 1e-9);
    }
}
