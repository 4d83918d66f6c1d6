//! Decides what runs next. A plain synchronous struct: no locks, no tasks, no clock of its own.
//!
//! It knows jobs (the sequences of one chunk) only by id, length and cost. The dispatcher owns it,
//! tells it the time, and says which jobs are still wanted.
//!
//! Rules, simple on purpose: lanes are served in order, within a lane strictly first come, first
//! served; a batch closes when the next sequence would pass the budget, the slot limit or the size
//! of a result; a sequence larger than the budget runs alone; there is no linger timer, since what
//! arrived while the device was busy is the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use crate::config::Head;

/// A lane that waited this long without being served goes first for one batch, so that it never
/// starves. Counted from its last service, not from arrival: else a long re-index, always older
/// than this, would overtake every query. A step at the knee of a CPU takes 30 ms, so beside queries
/// that fill every step each lower lane still gets about a seventh of the device: enough for its
/// requests to end within their time.
pub const MAX_LANE_WAIT: Duration = Duration::from_millis(200);

/// Bulk steps stay at the knee for so long after the last online work: the next query is likely.
pub const ONLINE_MEMORY: Duration = Duration::from_secs(1);

/// Who waits for the work; served in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// A person waits for a query.
    Online,
    /// Ranking of what a search found.
    Scoring,
    /// Indexing.
    Bulk,
}

impl Lane {
    /// Every lane, in the order of service.
    pub const ALL: [Self; 3] = [Self::Online, Self::Scoring, Self::Bulk];

    /// Name in metrics and headers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Scoring => "scoring",
            Self::Bulk => "bulk",
        }
    }
}

/// A queue of the device. A GPU has both; a CPU has only [`Stream::Normal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// High priority: online batches run beside whatever step is on the device.
    Online,
    /// Everything else.
    Normal,
}

impl Stream {
    /// Name as Python spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Online => "online",
            Self::Normal => "normal",
        }
    }
}

/// Identity of a queued chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// The sequences of one chunk, waiting.
#[derive(Clone, Debug)]
pub struct Job {
    /// Given by the dispatcher, never reused.
    pub id: JobId,
    /// Where it queues.
    pub lane: Lane,
    /// Sequences of different heads share no batch.
    pub head: Head,
    /// Cost of each sequence.
    pub costs: Arc<[u64]>,
    /// Bytes of the rows of each sequence.
    pub result_bytes: Arc<[u64]>,
    /// When it came in.
    pub enqueued: Instant,
}

/// Consecutive sequences of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Whose.
    pub job: JobId,
    /// Index of the first one in the job.
    pub first: usize,
    /// How many.
    pub count: usize,
    /// Sum over them.
    pub cost: u64,
}

/// What one step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where it runs.
    pub stream: Stream,
    /// Of all its sequences.
    pub head: Head,
    /// In the order in which they are packed.
    pub picks: Vec<Pick>,
    /// Sum over the sequences.
    pub cost: u64,
}

/// Limits of one step.
#[derive(Clone, Copy, Debug)]
pub struct StepLimits {
    /// Cost past which a larger step is hardly more efficient: the knee.
    pub budget: u64,
    /// Cost of a step of bulk work while nobody waits for queries.
    pub saturation_budget: u64,
    /// Cost of a step of [`Stream::Online`]: larger ones would be no answer to a query in time.
    pub online_budget: u64,
    /// Cost of such a step while another runs beside it, unless more than [`Self::online_budget`] waits.
    pub beside_budget: u64,
    /// Places for sequences.
    pub slots: usize,
    /// Bytes of all rows; no sequence alone has more.
    pub result_bytes: u64,
}

/// What is left in a step.
#[derive(Clone, Copy, Debug)]
struct Room {
    cost: u64,
    slots: usize,
    bytes: u64,
}

#[derive(Debug)]
struct Queued {
    job: Job,
    next: usize,
    cost_left: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Scheduler {
    limits: StepLimits,
    has_online_stream: bool,
    is_busy_beside: bool,
    lanes: [VecDeque<Queued>; 3],
    queued_cost: [u64; 3],
    last_served: [Option<Instant>; 3],
    last_online: Option<Instant>,
    reruns: VecDeque<Plan>,
}

// === impl Scheduler ===

impl Scheduler {
    /// An empty scheduler for a device with these streams.
    #[must_use]
    pub fn new(limits: StepLimits, streams: &[Stream]) -> Self {
        Self {
            limits,
            has_online_stream: streams.contains(&Stream::Online),
            is_busy_beside: false,
            lanes: Default::default(),
            queued_cost: [0; 3],
            last_served: [None; 3],
            last_online: None,
            reruns: VecDeque::new(),
        }
    }

    /// Queues a job behind all others of its lane.
    pub fn push(&mut self, job: Job) {
        if job.lane == Lane::Online {
            self.last_online = Some(job.enqueued);
        }
        let queued = Queued::new(job);
        let lane = queued.job.lane as usize;
        self.queued_cost[lane] += queued.cost_left;
        self.lanes[lane].push_back(queued);
    }

    /// Queues a job before all others of its lane: for health probes.
    pub fn push_front(&mut self, job: Job) {
        let queued = Queued::new(job);
        let lane = queued.job.lane as usize;
        self.queued_cost[lane] += queued.cost_left;
        self.lanes[lane].push_front(queued);
    }

    /// Queues a failed batch again, in two halves that share a step with nothing else.
    ///
    /// Returns false, and queues nothing, where the batch is one sequence: the culprit.
    pub fn rerun_in_halves(&mut self, plan: Plan, cost_of: impl Fn(&Pick) -> u64) -> bool {
        let num_sequences: usize = plan.picks.iter().map(|pick| pick.count).sum();
        if num_sequences < 2 {
            return false;
        }
        let (left, right) = split_picks(plan.picks, num_sequences / 2);
        for mut picks in [left, right] {
            for pick in &mut picks {
                pick.cost = cost_of(pick);
            }
            let cost = picks.iter().map(|pick| pick.cost).sum();
            self.reruns.push_back(Plan {
                picks,
                cost,
                ..plan
            });
        }
        true
    }

    /// Notes whether steps of [`Stream::Normal`] are on the device, beside which queries would run.
    pub fn set_busy_beside(&mut self, is_busy: bool) {
        self.is_busy_beside = is_busy;
    }

    /// Cost that waits in each lane, in the order of [`Lane::ALL`].
    #[must_use]
    pub fn queued_cost(&self) -> [u64; 3] {
        self.queued_cost
    }

    /// When the first of the queries that wait came in, if they are too few to fill a step.
    #[must_use]
    pub fn few_online_since(&self) -> Option<Instant> {
        let lane = &self.lanes[Lane::Online as usize];
        let num_waiting: usize = lane
            .iter()
            .take(self.limits.slots)
            .map(|queued| queued.job.costs.len() - queued.next)
            .sum();
        let is_full = num_waiting >= self.limits.slots
            || self.queued_cost[Lane::Online as usize] >= self.online_budget();
        let first = lane.front()?;
        (!is_full).then_some(first.job.enqueued)
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reruns.is_empty() && self.lanes.iter().all(VecDeque::is_empty)
    }

    /// Forgets every job that is not wanted any more, be it queued or to be rerun; returns their
    /// ids, some perhaps twice. Walks the whole queue.
    pub fn drop_dead(&mut self, is_wanted: impl Fn(JobId) -> bool) -> Vec<JobId> {
        let mut dropped = Vec::new();
        for (lane, cost) in self.lanes.iter_mut().zip(&mut self.queued_cost) {
            lane.retain(|queued| {
                let keep = is_wanted(queued.job.id);
                if !keep {
                    *cost -= queued.cost_left;
                    dropped.push(queued.job.id);
                }
                keep
            });
        }
        for plan in &mut self.reruns {
            drop_dead_picks(plan, &is_wanted, &mut dropped);
        }
        self.reruns.retain(|plan| !plan.picks.is_empty());
        dropped
    }

    /// What `stream` runs next, or `None` where nothing waits for it.
    ///
    /// Jobs that are not wanted are dropped where they would be picked, and put into `dropped`, so
    /// that no device time goes to them.
    pub fn next_plan(
        &mut self,
        stream: Stream,
        now: Instant,
        is_wanted: impl Fn(JobId) -> bool,
        dropped: &mut Vec<JobId>,
    ) -> Option<Plan> {
        while let Some(at) = self.reruns.iter().position(|plan| plan.stream == stream) {
            let mut plan = self.reruns.remove(at)?;
            drop_dead_picks(&mut plan, &is_wanted, dropped);
            if !plan.picks.is_empty() {
                return Some(plan);
            }
        }
        let mut plan: Option<Plan> = None;
        let mut slots_left = self.limits.slots;
        let mut bytes_left = self.limits.result_bytes;
        let budget = match stream {
            Stream::Online => self.online_budget(),
            Stream::Normal => self.budget(now),
        };
        let mut holds_online = false;
        while let Some(lane) = self.next_lane(stream, now) {
            // Bulk beside a query would make it, and the next one, wait for up to a full step.
            if holds_online && lane == Lane::Bulk as usize {
                break;
            }
            let Some(queued) = self.lanes[lane].front_mut() else {
                break;
            };
            if !is_wanted(queued.job.id) {
                self.queued_cost[lane] -= queued.cost_left;
                dropped.push(queued.job.id);
                self.lanes[lane].pop_front();
                continue;
            }
            let plan = plan.get_or_insert_with(|| Plan {
                stream,
                head: queued.job.head,
                picks: Vec::new(),
                cost: 0,
            });
            if plan.head != queued.job.head {
                break;
            }
            let room = Room {
                cost: budget.saturating_sub(plan.cost),
                slots: slots_left,
                bytes: bytes_left,
            };
            let (count, cost, bytes) = queued.fit(room, plan.picks.is_empty());
            if count == 0 {
                break;
            }
            holds_online |= lane == Lane::Online as usize;
            plan.picks.push(Pick {
                job: queued.job.id,
                first: queued.next,
                count,
                cost,
            });
            plan.cost += cost;
            slots_left -= count;
            bytes_left = bytes_left.saturating_sub(bytes);
            queued.next += count;
            queued.cost_left -= cost;
            self.queued_cost[lane] -= cost;
            self.last_served[lane] = Some(now);
            if queued.next < queued.job.costs.len() {
                break;
            }
            self.lanes[lane].pop_front();
        }
        plan.filter(|plan| !plan.picks.is_empty())
    }

    fn online_budget(&self) -> u64 {
        let is_much = self.queued_cost[Lane::Online as usize] >= self.limits.online_budget;
        if self.is_busy_beside && !is_much {
            self.limits.beside_budget
        } else {
            self.limits.online_budget
        }
    }

    /// The knee, or more while only bulk waits and no query came lately.
    fn budget(&self, now: Instant) -> u64 {
        let is_quiet = self
            .last_online
            .is_none_or(|at| now.duration_since(at) >= ONLINE_MEMORY);
        let is_bulk_only = [Lane::Online, Lane::Scoring]
            .into_iter()
            .all(|lane| self.lanes[lane as usize].is_empty());
        if is_quiet && is_bulk_only {
            self.limits.saturation_budget
        } else {
            self.limits.budget
        }
    }

    /// The lane whose head goes next on `stream`: in order, unless a lower one was starved.
    fn next_lane(&self, stream: Stream, now: Instant) -> Option<usize> {
        let served: &[Lane] = match stream {
            Stream::Online => &[Lane::Online],
            Stream::Normal if self.has_online_stream => &[Lane::Scoring, Lane::Bulk],
            Stream::Normal => &Lane::ALL,
        };
        let mut waiting = served
            .iter()
            .map(|lane| *lane as usize)
            .filter(|lane| !self.lanes[*lane].is_empty());
        let first = waiting.next()?;
        Some(
            waiting
                .find(|lane| self.is_starved(*lane, now))
                .unwrap_or(first),
        )
    }

    fn is_starved(&self, lane: usize, now: Instant) -> bool {
        self.lanes[lane].front().is_some_and(|queued| {
            let since = self.last_served[lane].max(Some(queued.job.enqueued));
            since.is_some_and(|since| now.duration_since(since) >= MAX_LANE_WAIT)
        })
    }
}

// === impl Queued ===

impl Queued {
    fn new(job: Job) -> Self {
        let cost_left = job.costs.iter().sum();
        Self {
            job,
            next: 0,
            cost_left,
        }
    }

    /// How many of the next sequences fit, their cost and the bytes of their rows. The first of a
    /// batch always fits.
    fn fit(&self, room: Room, is_first: bool) -> (usize, u64, u64) {
        let (mut count, mut cost, mut bytes) = (0, 0, 0);
        let left = self.job.costs[self.next..].iter();
        let left = left.zip(&self.job.result_bytes[self.next..]);
        for (next_cost, next_bytes) in left.take(room.slots) {
            let is_alone = is_first && count == 0;
            let is_over = cost + next_cost > room.cost || bytes + next_bytes > room.bytes;
            if !is_alone && is_over {
                break;
            }
            count += 1;
            cost += next_cost;
            bytes += next_bytes;
        }
        (count, cost, bytes)
    }
}

fn drop_dead_picks(plan: &mut Plan, is_wanted: impl Fn(JobId) -> bool, dropped: &mut Vec<JobId>) {
    plan.picks.retain(|pick| {
        let keep = is_wanted(pick.job);
        if !keep {
            plan.cost -= pick.cost;
            dropped.push(pick.job);
        }
        keep
    });
}

fn split_picks(picks: Vec<Pick>, mut num_left: usize) -> (Vec<Pick>, Vec<Pick>) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    for pick in picks {
        let taken = pick.count.min(num_left);
        num_left -= taken;
        if taken > 0 {
            left.push(Pick {
                count: taken,
                ..pick.clone()
            });
        }
        if taken < pick.count {
            right.push(Pick {
                job: pick.job,
                first: pick.first + taken,
                count: pick.count - taken,
                ..pick
            });
        }
    }
    (left, right)
}
