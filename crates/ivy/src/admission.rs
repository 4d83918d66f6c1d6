//! The cost of the requests that are being run, and whether one more has room beside them.

use std::sync::Arc;

use flowerbed_protocol::v1::Lane;
use parking_lot::Mutex;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Admission(Mutex<[u64; 3]>); // by lane, in the order of service

/// A request that was admitted, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    lane: usize,
    cost: u64,
}

/// A request that was not, and the cost that is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess(pub(crate) u64);

impl Admission {
    /// Admits a whole request, or none of it; `limit` 0 means none. If nothing runs, anything is
    /// admitted. Requests of lower lanes do not count, since they are served later: a re-index must
    /// not turn queries away.
    pub(crate) fn admit(
        self: &Arc<Self>,
        lane: Lane,
        cost: u64,
        limit: u64,
    ) -> Result<Admitted, Excess> {
        let lane = served_at(lane);
        let mut admitted = self.0.lock();
        check(&admitted[..=lane], cost, limit)?;
        admitted[lane] = admitted[lane].saturating_add(cost);
        Ok(Admitted {
            admission: Arc::clone(self),
            lane,
            cost,
        })
    }

    /// Whether it would be admitted now. It counts against nobody meanwhile.
    pub(crate) fn check(&self, lane: Lane, cost: u64, limit: u64) -> Result<(), Excess> {
        check(&self.0.lock()[..=served_at(lane)], cost, limit)
    }
}

fn check(before: &[u64], cost: u64, limit: u64) -> Result<(), Excess> {
    let before: u64 = before.iter().sum();
    let total = before.saturating_add(cost);
    if before > 0 && limit > 0 && total > limit {
        return Err(Excess(total - limit));
    }
    Ok(())
}

/// Place of a lane in the order of service.
fn served_at(lane: Lane) -> usize {
    match lane {
        Lane::Online => 0,
        Lane::Scoring => 1,
        Lane::Bulk | Lane::Unspecified => 2,
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut admitted = self.admission.0.lock();
        admitted[self.lane] = admitted[self.lane].saturating_sub(self.cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_only_looked_at_turns_no_other_away() {
        let admission = Arc::new(Admission::default());
        let _running = admission.admit(Lane::Online, 1, 100);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    let _ = admission.check(Lane::Online, 99, 100);
                }
            });
            for _ in 0..200_000 {
                admission.admit(Lane::Online, 50, 100).unwrap();
            }
        });
    }

    #[test]
    fn a_full_queue_refuses_what_comes_behind_it_and_says_by_how_much() {
        let admission = Arc::new(Admission::default());
        let first = admission.admit(Lane::Scoring, 300, 100).unwrap();
        for found in [
            admission.check(Lane::Bulk, 10, 100),
            admission.admit(Lane::Bulk, 10, 100).map(drop),
        ] {
            assert_eq!(found, Err(Excess(210)));
        }
        admission.check(Lane::Bulk, 10, 0).unwrap();
        admission.check(Lane::Online, 10, 100).unwrap();
        drop(first);
        admission.check(Lane::Bulk, 10, 100).unwrap();
    }
}
