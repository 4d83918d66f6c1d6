//! Power of two choices: of two random replicas, the one with less work in hand.
//!
//! Knows nothing of connections. The best of all would draw every gateway to the same replica at
//! once, between two load reports.

use rand::Rng;

/// Index of the chosen candidate; `load` is asked for two of them at most.
pub(crate) fn choose<T>(
    candidates: &[T],
    load: impl Fn(&T) -> u64,
    random: &mut impl Rng,
) -> Option<usize> {
    match candidates.len() {
        0 => None,
        1 => Some(0),
        num_candidates => {
            let first = random.random_range(0..num_candidates);
            let second = (first + random.random_range(1..num_candidates)) % num_candidates;
            let is_second_lighter = load(&candidates[second]) < load(&candidates[first]);
            Some(if is_second_lighter { second } else { first })
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn of_two_the_lighter_is_chosen() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..100 {
            assert_eq!(choose(&[7_u64, 3], |load| *load, &mut random), Some(1));
        }
        assert_eq!(choose(&[] as &[u64], |load| *load, &mut random), None);
    }

    #[test]
    fn the_heaviest_of_many_is_never_chosen_and_equal_ones_share() {
        let mut random = StdRng::seed_from_u64(2);
        let loads = [1_u64, 9, 1, 1];
        let mut counts = [0; 4];
        for _ in 0..3_000 {
            counts[choose(&loads, |load| *load, &mut random).unwrap()] += 1;
        }
        assert_eq!(counts[1], 0);
        assert!(
            counts
                .iter()
                .enumerate()
                .all(|(i, count)| i == 1 || *count > 800),
            "{counts:?}"
        );
    }
}
