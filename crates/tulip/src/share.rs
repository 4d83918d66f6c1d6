//! How much of the device online steps may take while other work runs beside them.

use std::time::Duration;

use tokio::time::Instant;

/// Share of the device's time. A step of a few queries slows the one beside it by a third to a half for
/// as long as it runs: at this share a re-index keeps more than four fifths of its rate.
const SHARE: f64 = 0.4;
/// What was not used lately, so that a burst of queries at a moderate rate waits for nothing.
const BURST: Duration = Duration::from_millis(50);
/// A query waits no longer for the sake of other work.
const PATIENCE: Duration = Duration::from_millis(2);

/// Time that online steps have left; below zero they wait, and grow meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Share {
    left: f64, // seconds
    at: Option<Instant>,
}

// === impl Share ===

impl Share {
    /// Takes what a step has used.
    pub(crate) fn spend(&mut self, ran_for: Duration, now: Instant) {
        self.refill(now);
        self.left -= ran_for.as_secs_f64();
    }

    /// Until when queries of which the first came in at `since` are to wait for more of them; `None`
    /// if they may run.
    pub(crate) fn held_back_until(&mut self, since: Instant, now: Instant) -> Option<Instant> {
        self.refill(now);
        let until = since + PATIENCE;
        (self.left < 0.0 && until > now).then_some(until)
    }

    fn refill(&mut self, now: Instant) {
        let most = BURST.as_secs_f64();
        // The end of a step is told late: time that has counted must not count again.
        let now = self.at.map_or(now, |at| at.max(now));
        self.left = match self.at.replace(now) {
            Some(last) => {
                let gained = SHARE * now.saturating_duration_since(last).as_secs_f64();
                // A debt beyond one burst is forgotten: it comes from work that could not wait.
                (self.left.max(-most) + gained).min(most)
            }
            None => most,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    #[test]
    fn a_burst_is_free_and_then_the_share_holds() {
        let (mut share, start) = (Share::default(), Instant::now());
        let mut now = start;
        let mut num_steps = 0;
        for _ in 0..1_000 {
            let is_held_back = share.held_back_until(now, now).is_some();
            now += STEP;
            if !is_held_back {
                share.spend(STEP, now);
                num_steps += 1;
            }
        }
        // 400 of 1,000 ms, and the burst of 50.
        assert!((445..=455).contains(&num_steps), "{num_steps}");
    }

    #[test]
    fn a_long_step_is_paid_for_no_longer_than_a_burst() {
        let (mut share, start) = (Share::default(), Instant::now());
        share.spend(Duration::from_secs(10), start);
        for (after, is_held_back) in [(120, true), (130, false)] {
            let now = start + Duration::from_millis(after);
            assert_eq!(share.held_back_until(now, now).is_some(), is_held_back);
        }
    }

    #[test]
    fn a_query_waits_no_longer_than_its_patience() {
        let (mut share, start) = (Share::default(), Instant::now());
        share.spend(Duration::from_secs(1), start);
        let until = share.held_back_until(start, start);
        assert_eq!(until, Some(start + PATIENCE));
        assert_eq!(share.held_back_until(start, start + PATIENCE), None);
    }

    #[test]
    fn a_step_whose_end_is_told_late_gains_no_time() {
        let (mut share, start) = (Share::default(), Instant::now());
        share.spend(Duration::from_secs(1), start);
        let now = start + 10 * STEP;
        for _ in 0..100 {
            assert!(share.held_back_until(now, now).is_some());
            share.spend(Duration::ZERO, start);
        }
    }
}
