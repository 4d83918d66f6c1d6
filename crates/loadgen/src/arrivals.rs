//! When the requests of one stream are meant to be sent.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

/// What sets the pace of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop, independent callers: gaps are exponential.
    Poisson {
        /// Mean rate.
        per_second: f64,
        /// The same seed gives the same times.
        seed: u64,
    },
    /// Open loop, equal gaps.
    Constant {
        /// Rate.
        per_second: f64,
    },
    /// Closed loop: so many callers, each of which waits for its answer.
    Callers(usize),
}

/// Times of an open loop from the start on, without end.
#[derive(Debug)]
pub struct Arrivals {
    per_second: f64,
    /// None for equal gaps.
    random: Option<StdRng>,
    num_given: u64,
    last_s: f64,
}

impl Arrivals {
    /// None for a closed loop, which has no schedule.
    #[must_use]
    pub fn new(pace: Pace) -> Option<Self> {
        let (per_second, random) = match pace {
            Pace::Poisson { per_second, seed } => (per_second, Some(StdRng::seed_from_u64(seed))),
            Pace::Constant { per_second } => (per_second, None),
            Pace::Callers(_) => return None,
        };
        Some(Self {
            per_second,
            random,
            num_given: 0,
            last_s: 0.0,
        })
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    #[allow(
        clippy::cast_precision_loss,
        reason = "a count of requests is far below 2^52"
    )]
    fn next(&mut self) -> Option<Duration> {
        self.last_s = match &mut self.random {
            Some(random) => {
                let uniform: f64 = random.random();
                self.last_s - (1.0 - uniform).ln() / self.per_second
            }
            // From the count, not from the last time: rounding must not add up.
            None => self.num_given as f64 / self.per_second,
        };
        self.num_given += 1;
        Some(Duration::from_secs_f64(self.last_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(pace: Pace, count: usize) -> Vec<f64> {
        let arrivals = Arrivals::new(pace).unwrap();
        arrivals.take(count).map(|at| at.as_secs_f64()).collect()
    }

    #[test]
    fn constant_arrivals_keep_their_rate_without_drift() {
        let times = seconds(Pace::Constant { per_second: 300.0 }, 3_001);
        assert!(times[0].abs() < 1e-9);
        assert!((times[3_000] - 10.0).abs() < 1e-6);
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let pace = Pace::Poisson {
            per_second: 200.0,
            seed: 7,
        };
        let times = seconds(pace, 20_000);
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        assert!((mean * 200.0 - 1.0).abs() < 0.03, "{mean}");
        // P(gap > mean) = 1/e, and the deviation of an exponential is its mean.
        let longer = gaps.iter().filter(|gap| **gap > 0.005).count() as f64 / gaps.len() as f64;
        assert!((longer - (-1.0_f64).exp()).abs() < 0.02, "{longer}");
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05);
    }

    #[test]
    fn a_seed_gives_its_times_again_and_another_seed_others() {
        let times = |seed| {
            let per_second = 50.0;
            seconds(Pace::Poisson { per_second, seed }, 100)
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        assert!(Arrivals::new(Pace::Callers(4)).is_none());
    }
}
