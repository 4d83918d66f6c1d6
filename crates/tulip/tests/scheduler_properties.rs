//! What must hold whatever comes in, hangs up or fails, and whenever batches are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flowerbed_tulip::config::Head;
use flowerbed_tulip::scheduler::{
    Job, JobId, Lane, MAX_LANE_WAIT, Pick, Plan, Scheduler, StepLimits, Stream,
};
use proptest::prelude::*;
use tokio::time::Instant;

const LIMITS: StepLimits = StepLimits {
    budget: 100,
    saturation_budget: 300,
    online_budget: 60,
    beside_budget: 60,
    slots: 8,
    result_bytes: 1_000,
};

#[derive(Clone, Debug)]
enum Event {
    Push {
        lane: usize,
        head: bool,
        costs: Vec<u64>,
    },
    HangUp {
        victim: prop::sample::Index,
    },
    Sweep,
    Step {
        online: bool,
        fails: bool,
    },
    Wait {
        ms: u64,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let push = (
        0..3_usize,
        any::<bool>(),
        prop::collection::vec(1..150_u64, 1..12),
    )
        .prop_map(|(lane, head, costs)| Event::Push { lane, head, costs });
    let step = (any::<bool>(), prop::bool::weighted(0.2))
        .prop_map(|(online, fails)| Event::Step { online, fails });
    let event = prop_oneof![
        3 => push,
        4 => step,
        1 => any::<prop::sample::Index>().prop_map(|victim| Event::HangUp { victim }),
        1 => Just(Event::Sweep),
        1 => (0..1_500_u64).prop_map(|ms| Event::Wait { ms }),
    ];
    prop::collection::vec(event, 1..80)
}

/// Bytes of a sequence's rows; some are above the limit of a step.
fn row_bytes(cost: u64) -> u64 {
    cost * 97 % 1_100
}

/// The scheduler, and what the world knows of its jobs.
struct World {
    streams: Vec<Stream>,
    scheduler: Scheduler,
    now: Instant,
    jobs: BTreeMap<JobId, (Lane, Head, Vec<u64>)>,
    alive: BTreeSet<JobId>,
    told: BTreeSet<JobId>, // dropped, and said so
    ran: BTreeMap<JobId, Vec<usize>>,
    failed: BTreeSet<JobId>,
}

impl World {
    fn new(streams: &[Stream]) -> Self {
        Self {
            streams: streams.to_vec(),
            scheduler: Scheduler::new(LIMITS, streams),
            now: Instant::now(),
            jobs: BTreeMap::new(),
            alive: BTreeSet::new(),
            told: BTreeSet::new(),
            ran: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    fn push(&mut self, lane: usize, head: bool, costs: Vec<u64>) {
        let id = JobId(self.jobs.len() as u64);
        let (lane, head) = (
            Lane::ALL[lane],
            if head { Head::Embed } else { Head::Score },
        );
        self.scheduler.push(Job {
            id,
            lane,
            head,
            result_bytes: costs.iter().copied().map(row_bytes).collect(),
            costs: Arc::from(costs.as_slice()),
            enqueued: self.now,
        });
        self.jobs.insert(id, (lane, head, costs));
        self.alive.insert(id);
    }

    fn sweep(&mut self) {
        let alive = &self.alive;
        self.told
            .extend(self.scheduler.drop_dead(|id| alive.contains(&id)));
    }

    fn costs_of(&self, pick: &Pick) -> &[u64] {
        &self.jobs[&pick.job].2[pick.first..pick.first + pick.count]
    }

    /// Runs what comes next; false where nothing waits.
    fn step(&mut self, stream: Stream, fails: bool) -> bool {
        let alive = &self.alive;
        let mut dropped = Vec::new();
        let plan =
            self.scheduler
                .next_plan(stream, self.now, |id| alive.contains(&id), &mut dropped);
        self.told.extend(dropped);
        let Some(plan) = plan else { return false };
        self.check_limits(&plan);
        if !fails {
            for pick in &plan.picks {
                let ran = self.ran.entry(pick.job).or_default();
                ran.extend(pick.first..pick.first + pick.count);
            }
            return true;
        }
        let jobs = &self.jobs;
        let cost_of = |pick: &Pick| {
            jobs[&pick.job].2[pick.first..pick.first + pick.count]
                .iter()
                .sum()
        };
        let culprit = plan.picks[0].job;
        if !self.scheduler.rerun_in_halves(plan, cost_of) {
            self.failed.insert(culprit);
            self.alive.remove(&culprit);
        }
        true
    }

    /// Runs what comes next, which works and is wanted.
    fn run(&mut self, stream: Stream) -> Option<Plan> {
        let plan = self
            .scheduler
            .next_plan(stream, self.now, |_| true, &mut Vec::new())?;
        self.check_limits(&plan);
        for pick in &plan.picks {
            let ran = self.ran.entry(pick.job).or_default();
            ran.extend(pick.first..pick.first + pick.count);
        }
        Some(plan)
    }

    /// Cost of the next sequence of a lane.
    fn next_of(&self, lane: Lane) -> Option<u64> {
        self.jobs.iter().find_map(|(id, (job_lane, _, costs))| {
            let num_ran = self.ran.get(id).map_or(0, Vec::len);
            (*job_lane == lane).then(|| costs.get(num_ran).copied())?
        })
    }

    fn check_limits(&self, plan: &Plan) {
        let costs: Vec<u64> = plan
            .picks
            .iter()
            .flat_map(|p| self.costs_of(p))
            .copied()
            .collect();
        let cost: u64 = costs.iter().sum();
        let bytes: u64 = costs.iter().copied().map(row_bytes).sum();
        assert!(!costs.is_empty());
        assert!(costs.len() <= LIMITS.slots);
        assert_eq!(cost, plan.cost);
        let budget = match plan.stream {
            Stream::Online => LIMITS.online_budget,
            Stream::Normal => LIMITS.saturation_budget,
        };
        assert!(costs.len() == 1 || cost <= budget);
        assert!(costs.len() == 1 || bytes <= LIMITS.result_bytes);
        let has_online_stream = self.streams.contains(&Stream::Online);
        for pick in &plan.picks {
            assert!(
                self.alive.contains(&pick.job),
                "nobody waits for {:?}",
                pick.job
            );
            assert_eq!(self.jobs[&pick.job].1, plan.head);
            let is_query = self.jobs[&pick.job].0 == Lane::Online;
            assert_eq!(plan.stream == Stream::Online, has_online_stream && is_query);
        }
    }
}

fn check(streams: &[Stream], events: Vec<Event>) {
    let mut world = World::new(streams);
    for event in events {
        match event {
            Event::Push { lane, head, costs } => world.push(lane, head, costs),
            Event::HangUp { victim } if !world.alive.is_empty() => {
                let alive: Vec<_> = world.alive.iter().copied().collect();
                world.alive.remove(victim.get(&alive));
            }
            Event::HangUp { .. } => {}
            Event::Sweep => world.sweep(),
            Event::Step { online, fails } => {
                let stream = streams[usize::from(online) % streams.len()];
                world.step(stream, fails);
            }
            Event::Wait { ms } => world.now += Duration::from_millis(ms),
        }
    }
    for stream in streams {
        while world.step(*stream, false) {}
    }
    world.sweep();
    assert!(world.scheduler.is_empty());
    assert_eq!(world.scheduler.queued_cost(), [0; 3]);
    for (id, (_, _, costs)) in &world.jobs {
        let mut ran = world.ran.remove(id).unwrap_or_default();
        let num_ran = ran.len();
        ran.sort_unstable();
        ran.dedup();
        assert_eq!(ran.len(), num_ran, "{id:?} ran twice");
        let is_done = ran.len() == costs.len();
        assert!(is_done || !world.alive.contains(id), "{id:?} was lost");
        // Who hung up before the end is told of, so that what is kept for it can be freed.
        assert!(
            is_done || world.failed.contains(id) || world.told.contains(id),
            "{id:?} leaks"
        );
    }
}

proptest! {
    #[test]
    fn on_a_cpu_nothing_is_lost_or_runs_twice_and_the_limits_hold(events in events()) {
        check(&[Stream::Normal], events);
    }

    #[test]
    fn on_a_gpu_nothing_is_lost_or_runs_twice_and_the_limits_hold(events in events()) {
        check(&[Stream::Online, Stream::Normal], events);
    }

    /// Without failures, a lane's sequences run in the order in which they came.
    #[test]
    fn order_holds_within_a_lane_on_a_cpu(jobs in jobs(), turns in turns()) {
        check_order(&[Stream::Normal], jobs, turns)?;
    }

    #[test]
    fn order_holds_within_a_lane_on_a_gpu(jobs in jobs(), turns in turns()) {
        check_order(&[Stream::Online, Stream::Normal], jobs, turns)?;
    }

    /// On a GPU's normal stream: scoring before bulk unless bulk was starved, and no step closes
    /// while the next sequence of either would fit.
    #[test]
    fn bulk_fills_what_scoring_leaves(jobs in jobs(), turns in turns()) {
        let streams = [Stream::Online, Stream::Normal];
        let mut world = World::new(&streams);
        for (lane, costs) in jobs {
            world.push(lane, true, costs);
        }
        let mut waited = Duration::ZERO; // since bulk was served
        for (ms, _) in turns {
            world.now += Duration::from_millis(ms);
            waited += Duration::from_millis(ms);
            let had_scoring = world.next_of(Lane::Scoring).is_some();
            let Some(plan) = world.run(Stream::Normal) else { break };
            let lanes: Vec<_> = plan.picks.iter().map(|pick| world.jobs[&pick.job].0).collect();
            let was_starved = lanes[0] == Lane::Bulk && had_scoring;
            if was_starved {
                prop_assert!(waited >= MAX_LANE_WAIT);
            } else {
                prop_assert!(lanes.is_sorted());
            }
            if lanes.contains(&Lane::Bulk) {
                waited = Duration::ZERO;
            }
            let closed_by = world.next_of(Lane::Scoring).or(world.next_of(Lane::Bulk));
            if let Some(next) = closed_by {
                let costs: Vec<u64> =
                    plan.picks.iter().flat_map(|pick| world.costs_of(pick)).copied().collect();
                let bytes: u64 = costs.iter().copied().map(row_bytes).sum();
                prop_assert!(
                    was_starved
                        || costs.len() == LIMITS.slots
                        || plan.cost + next > LIMITS.budget
                        || bytes + row_bytes(next) > LIMITS.result_bytes
                );
            }
        }
    }
}

fn jobs() -> impl Strategy<Value = Vec<(usize, Vec<u64>)>> {
    prop::collection::vec(
        (0..3_usize, prop::collection::vec(1..150_u64, 1..12)),
        1..40,
    )
}

/// How many milliseconds pass before each step, and on which stream it runs.
fn turns() -> impl Strategy<Value = Vec<(u64, bool)>> {
    prop::collection::vec((0..700_u64, any::<bool>()), 200)
}

fn check_order(
    streams: &[Stream],
    jobs: Vec<(usize, Vec<u64>)>,
    turns: Vec<(u64, bool)>,
) -> Result<(), TestCaseError> {
    let mut world = World::new(streams);
    for (lane, costs) in jobs {
        world.push(lane, true, costs);
    }
    let mut order: BTreeMap<Lane, Vec<(JobId, usize)>> = BTreeMap::new();
    let mut turns = turns.into_iter().cycle();
    while !world.scheduler.is_empty() {
        let (ms, online) = turns.next().unwrap_or_default();
        world.now += Duration::from_millis(ms);
        let stream = streams[usize::from(online) % streams.len()];
        let Some(plan) = world.run(stream) else {
            continue;
        };
        for pick in &plan.picks {
            let ran = (pick.first..pick.first + pick.count).map(|at| (pick.job, at));
            order
                .entry(world.jobs[&pick.job].0)
                .or_default()
                .extend(ran);
        }
    }
    for ran in order.values() {
        prop_assert!(ran.is_sorted());
    }
    prop_assert_eq!(
        order.values().map(Vec::len).sum::<usize>(),
        world
            .jobs
            .values()
            .map(|(_, _, costs)| costs.len())
            .sum::<usize>()
    );
    Ok(())
}
