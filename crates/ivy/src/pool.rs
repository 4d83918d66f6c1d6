//! All replicas of the model: which are up, what they serve, and whether a request is admitted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flowerbed_protocol::v1::Lane;
use flowerbed_protocol::{Error, ErrorKind};

use crate::admission::{Admission, Admitted, Excess};
use crate::balance;
use crate::replica::{Replica, Session};

/// No earlier: a caller who comes back at once finds the same.
const MIN_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The replicas of one gateway.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) replicas: Vec<Arc<Replica>>,
    admission: Arc<Admission>,
}

/// A replica that is up, with the connection it is up on.
pub(crate) type Live = (Arc<Replica>, Arc<Session>);

/// The replicas whose vectors may stand in one answer.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) live: Vec<Live>,
    /// A member's; what moves a vector is the same for all of them.
    pub(crate) session: Arc<Session>,
}

impl Group {
    /// The space of the answer.
    pub(crate) fn space(&self) -> &str {
        &self.session.info.space
    }

    /// Cost that the queues hold; 0 if the workers state none.
    fn queue_limit(&self) -> u64 {
        self.live
            .iter()
            .map(|(replica, session)| replica.queue_limit(session))
            .sum()
    }

    /// Cost of the largest step, over all members the smallest.
    pub(crate) fn step_budget(&self) -> u64 {
        let budgets = self
            .live
            .iter()
            .map(|(_, session)| session.info.max_batch_tokens);
        budgets.min().unwrap_or(0)
    }

    /// 429, to be tried again when what is too much now has run: this gateway's excess, and what
    /// other gateways had queued when the workers last told.
    fn overloaded(&self, Excess(excess): Excess) -> Error {
        let others: u64 = self
            .live
            .iter()
            .map(|(replica, _)| replica.load_of_others())
            .sum();
        let rate = self
            .live
            .iter()
            .map(|(replica, session)| replica.cost_per_second(session))
            .sum();
        Error::new(ErrorKind::Overloaded, "the queue is full; try again later")
            .after(time_to_run(excess.saturating_add(others), rate))
    }
}

impl Pool {
    pub(crate) fn new(replicas: Vec<Arc<Replica>>) -> Self {
        Self {
            replicas,
            admission: Arc::default(),
        }
    }

    /// The space that most live replicas serve. While an upgrade rolls there are two.
    pub(crate) fn group(&self) -> Result<Group, Error> {
        let mut spaces: BTreeMap<String, Vec<Live>> = BTreeMap::new();
        for live in self.live() {
            spaces
                .entry(live.1.info.space.clone())
                .or_default()
                .push(live);
        }
        spaces
            .into_iter()
            .max_by_key(|(space, live)| (live.len(), Reverse(space.clone())))
            .and_then(|(_, live)| {
                let session = Arc::clone(&live.first()?.1);
                Some(Group { live, session })
            })
            .ok_or_else(unavailable)
    }

    /// A replica of that space for one chunk, `tried` excluded.
    pub(crate) fn pick(&self, space: &str, tried: Option<usize>) -> Option<Live> {
        let mut candidates: Vec<Live> = self
            .live()
            .filter(|(replica, session)| {
                session.info.space == space && Some(replica.index) != tried
            })
            .collect();
        let choice = balance::choose(&candidates, |(replica, _)| replica.load(), &mut rand::rng())?;
        Some(candidates.swap_remove(choice))
    }

    /// Whether any replica is up.
    pub(crate) fn is_up(&self) -> bool {
        self.live().next().is_some()
    }

    /// Why each replica that is down is down.
    pub(crate) fn down_reasons(&self) -> Vec<String> {
        let reason = |replica: &Arc<Replica>| {
            replica
                .down_reason()
                .map(|reason| format!("{}: {reason}", replica.name))
        };
        self.replicas.iter().filter_map(reason).collect()
    }

    /// Takes a request into account, or refuses it.
    pub(crate) fn admit(&self, group: &Group, lane: Lane, cost: u64) -> Result<Admitted, Error> {
        self.admission
            .admit(lane, cost, group.queue_limit())
            .map_err(|excess| group.overloaded(excess))
    }

    /// Refuses a request that [`Pool::admit`] would refuse now.
    pub(crate) fn check(&self, group: &Group, lane: Lane, cost: u64) -> Result<(), Error> {
        self.admission
            .check(lane, cost, group.queue_limit())
            .map_err(|excess| group.overloaded(excess))
    }

    /// The replicas that are up.
    pub(crate) fn live(&self) -> impl Iterator<Item = Live> + '_ {
        self.replicas.iter().filter_map(|replica| {
            replica
                .session()
                .map(|session| (Arc::clone(replica), session))
        })
    }
}

/// No replica is up.
pub(crate) fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "no worker is ready; try again").after(MIN_DELAY)
}

/// How long workers of this rate take for so much cost.
#[allow(clippy::cast_precision_loss, reason = "costs are far below 2^52")]
fn time_to_run(cost: u64, cost_per_second: f64) -> Duration {
    Duration::try_from_secs_f64(cost as f64 / cost_per_second)
        .unwrap_or(MAX_DELAY) // a rate of zero
        .clamp(MIN_DELAY, MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_is_advised_when_the_excess_has_run_within_1_to_60_s() {
        assert_eq!(time_to_run(5_000, 1_000.0), Duration::from_secs(5));
        assert_eq!(time_to_run(1, 1_000.0), MIN_DELAY);
        assert_eq!(time_to_run(0, 0.0), MAX_DELAY);
        assert_eq!(time_to_run(1_000_000, 1.0), MAX_DELAY);
        assert_eq!(time_to_run(1, 0.0), MAX_DELAY);
    }
}
