//! Percentiles.

use serde::Serialize;

/// Of many values, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Arithmetic.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95 of 100 are not above it.
    pub p95: f64,
    /// 99 of 100.
    pub p99: f64,
    /// 999 of 1,000.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of microseconds; zeros where there are none. Percentiles are by nearest rank: each is a value
    /// that was seen.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "microseconds of one run are far below 2^52"
    )]
    pub fn of(mut micros: Vec<u64>) -> Self {
        micros.sort_unstable();
        let Some(max) = micros.last() else {
            return Self::default();
        };
        let ms = |micros: u64| micros as f64 / 1_000.0;
        let at = |per_mille: usize| {
            let rank = (micros.len() * per_mille).div_ceil(1_000).max(1);
            ms(micros[rank - 1])
        };
        Self {
            mean: ms(micros.iter().sum()) / micros.len() as f64,
            p50: at(500),
            p95: at(950),
            p99: at(990),
            p999: at(999),
            max: ms(*max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let spread = Spread::of((1..=1_000).rev().map(|ms| ms * 1_000).collect());
        let values = [spread.p50, spread.p95, spread.p99, spread.p999, spread.max];
        assert_eq!(values, [500.0, 950.0, 990.0, 999.0, 1_000.0]);
        assert!((spread.mean - 500.5).abs() < 1e-9);
        let one = Spread::of(vec![2_500]);
        assert_eq!((one.p50, one.p999, one.max), (2.5, 2.5, 2.5));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
