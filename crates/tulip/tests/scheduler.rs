//! The scheduler's rules, on a clock that the test moves.

use std::collections::HashSet;
use std::sync::Arc;

use flowerbed_tulip::config::Head;
use flowerbed_tulip::scheduler::{
    Job, JobId, Lane, MAX_LANE_WAIT, ONLINE_MEMORY, Plan, Scheduler, StepLimits, Stream,
};
use tokio::time::Instant;

const LIMITS: StepLimits = StepLimits {
    budget: 100,
    saturation_budget: 100,
    online_budget: 40,
    beside_budget: 10,
    slots: 8,
    result_bytes: 1_000,
};

fn job(id: u64, lane: Lane, costs: &[u64], now: Instant) -> Job {
    Job {
        id: JobId(id),
        lane,
        head: Head::Embed,
        costs: Arc::from(costs),
        result_bytes: costs.iter().map(|_| 1).collect(),
        enqueued: now,
    }
}

fn on_cpu() -> Scheduler {
    Scheduler::new(LIMITS, &[Stream::Normal])
}

fn picked(plan: &Plan) -> Vec<(u64, usize, usize)> {
    plan.picks
        .iter()
        .map(|pick| (pick.job.0, pick.first, pick.count))
        .collect()
}

fn next(scheduler: &mut Scheduler, now: Instant) -> Vec<(u64, usize, usize)> {
    scheduler
        .next_plan(Stream::Normal, now, |_| true, &mut Vec::new())
        .map_or(Vec::new(), |plan| picked(&plan))
}

#[test]
fn a_batch_closes_at_the_budget_and_the_rest_goes_next() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[40, 40, 40], now));
    assert_eq!(next(&mut scheduler, now), [(1, 0, 2)]);
    assert_eq!(next(&mut scheduler, now), [(1, 2, 1)]);
    assert!(scheduler.is_empty());
}

#[test]
fn a_batch_closes_before_its_rows_are_too_many_bytes() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    for (id, result_bytes) in [(1, [600, 400]), (2, [1, 2_000]), (3, [500, 500])] {
        scheduler.push(Job {
            result_bytes: Arc::from(result_bytes),
            ..job(id, Lane::Bulk, &[1, 1], now)
        });
    }
    assert_eq!(next(&mut scheduler, now), [(1, 0, 2)]);
    assert_eq!(next(&mut scheduler, now), [(2, 0, 1)]);
    assert_eq!(next(&mut scheduler, now), [(2, 1, 1)], "runs alone");
    assert_eq!(next(&mut scheduler, now), [(3, 0, 2)]);
    assert!(scheduler.is_empty());
}

#[test]
fn a_batch_closes_at_the_slot_limit() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[1; 11], now));
    assert_eq!(next(&mut scheduler, now), [(1, 0, 8)]);
    assert_eq!(next(&mut scheduler, now), [(1, 8, 3)]);
}

#[test]
fn a_sequence_over_the_budget_runs_alone() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[5, 900, 5], now));
    assert_eq!(next(&mut scheduler, now), [(1, 0, 1)]);
    assert_eq!(next(&mut scheduler, now), [(1, 1, 1)]);
    assert_eq!(next(&mut scheduler, now), [(1, 2, 1)]);
}

#[test]
fn a_head_that_does_not_fit_is_not_overtaken() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[60], now));
    scheduler.push(job(2, Lane::Online, &[60], now));
    scheduler.push(job(3, Lane::Online, &[10], now));
    assert_eq!(next(&mut scheduler, now), [(1, 0, 1)]);
    assert_eq!(next(&mut scheduler, now), [(2, 0, 1), (3, 0, 1)]);
}

#[test]
fn scoring_shares_a_batch_with_queries_on_a_cpu_and_bulk_does_not() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[30, 30, 30], now));
    scheduler.push(job(2, Lane::Scoring, &[30], now));
    scheduler.push(job(3, Lane::Online, &[30], now));
    assert_eq!(next(&mut scheduler, now), [(3, 0, 1), (2, 0, 1)]);
    assert_eq!(next(&mut scheduler, now), [(1, 0, 3)]);
}

#[test]
fn on_a_gpu_each_stream_runs_its_own_lanes() {
    let now = Instant::now();
    let mut scheduler = Scheduler::new(LIMITS, &[Stream::Online, Stream::Normal]);
    scheduler.push(job(1, Lane::Bulk, &[30], now));
    scheduler.push(job(2, Lane::Scoring, &[30], now));
    scheduler.push(job(3, Lane::Online, &[30], now));
    let online = scheduler
        .next_plan(Stream::Online, now, |_| true, &mut Vec::new())
        .unwrap();
    assert_eq!(
        (online.stream, picked(&online)),
        (Stream::Online, vec![(3, 0, 1)])
    );
    let normal = scheduler
        .next_plan(Stream::Normal, now, |_| true, &mut Vec::new())
        .unwrap();
    assert_eq!(
        (normal.stream, picked(&normal)),
        (Stream::Normal, vec![(2, 0, 1), (1, 0, 1)])
    );
    assert!(
        scheduler
            .next_plan(Stream::Online, now, |_| true, &mut Vec::new())
            .is_none()
    );
}

fn on_gpu() -> Scheduler {
    Scheduler::new(LIMITS, &[Stream::Online, Stream::Normal])
}

#[test]
fn on_a_gpu_scoring_goes_first_and_bulk_fills_the_rest_of_its_step() {
    let (mut scheduler, now) = (on_gpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[30; 6], now));
    scheduler.push(job(2, Lane::Scoring, &[30], now));
    scheduler.push(job(3, Lane::Scoring, &[80, 80], now));
    assert_eq!(next(&mut scheduler, now), [(2, 0, 1)], "3 is before bulk");
    assert_eq!(next(&mut scheduler, now), [(3, 0, 1)]);
    scheduler.push(job(4, Lane::Scoring, &[20], now));
    assert_eq!(next(&mut scheduler, now), [(3, 1, 1), (4, 0, 1)]);
    scheduler.push(job(5, Lane::Scoring, &[20], now));
    assert_eq!(next(&mut scheduler, now), [(5, 0, 1), (1, 0, 2)]);
    assert_eq!(next(&mut scheduler, now), [(1, 2, 3)]);
    scheduler.push(job(6, Lane::Scoring, &[90], now));
    let later = now + MAX_LANE_WAIT;
    assert_eq!(
        next(&mut scheduler, later),
        [(1, 5, 1)],
        "starved, for one step"
    );
    assert_eq!(next(&mut scheduler, later), [(6, 0, 1)]);
}

#[test]
fn the_stream_of_queries_has_a_budget_of_its_own_and_a_longer_query_runs_alone() {
    let (mut scheduler, now) = (on_gpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[20, 20, 5, 90, 5], now));
    let mut steps = Vec::new();
    while let Some(plan) = scheduler.next_plan(Stream::Online, now, |_| true, &mut Vec::new()) {
        steps.extend(picked(&plan));
    }
    assert_eq!(steps, [(1, 0, 2), (1, 2, 1), (1, 3, 1), (1, 4, 1)]);
}

#[test]
fn queries_beside_other_work_share_small_steps_until_more_wait_than_a_large_one_holds() {
    let (mut scheduler, now) = (on_gpu(), Instant::now());
    let sizes = |scheduler: &mut Scheduler| {
        std::iter::from_fn(|| scheduler.next_plan(Stream::Online, now, |_| true, &mut Vec::new()))
            .map(|plan| plan.cost)
            .collect::<Vec<_>>()
    };
    for id in 0..6 {
        scheduler.push(job(id, Lane::Online, &[5], now));
    }
    assert_eq!(scheduler.few_online_since(), Some(now));
    scheduler.set_busy_beside(true);
    assert_eq!(scheduler.few_online_since(), None, "a small step is full");
    assert_eq!(sizes(&mut scheduler), [10, 10, 10]);
    assert_eq!(scheduler.few_online_since(), None, "nothing waits");
    for id in 10..20 {
        scheduler.push(job(id, Lane::Online, &[5], now));
    }
    // Slots end the first step.
    assert_eq!(sizes(&mut scheduler), [40, 10]);
    scheduler.set_busy_beside(false);
    for id in 20..26 {
        scheduler.push(job(id, Lane::Online, &[5], now));
    }
    assert_eq!(sizes(&mut scheduler), [30]);
}

#[test]
fn on_a_gpu_too_bulk_steps_grow_only_while_no_query_came_lately() {
    let limits = StepLimits {
        saturation_budget: 400,
        ..LIMITS
    };
    let mut scheduler = Scheduler::new(limits, &[Stream::Online, Stream::Normal]);
    let start = Instant::now();
    scheduler.push(job(1, Lane::Bulk, &[100; 50], start));
    assert_eq!(next(&mut scheduler, start), [(1, 0, 4)]);
    scheduler.push(job(2, Lane::Online, &[20], start));
    assert_eq!(next(&mut scheduler, start), [(1, 4, 1)], "a query waits");
    assert!(
        scheduler
            .next_plan(Stream::Online, start, |_| true, &mut Vec::new())
            .is_some()
    );
    let soon = start + ONLINE_MEMORY * 9 / 10;
    assert_eq!(next(&mut scheduler, soon), [(1, 5, 1)]);
    assert_eq!(next(&mut scheduler, start + ONLINE_MEMORY), [(1, 6, 4)]);
}

#[test]
fn sequences_of_different_heads_share_no_batch() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[1], now));
    scheduler.push(Job {
        head: Head::Score,
        ..job(2, Lane::Online, &[1], now)
    });
    assert_eq!(next(&mut scheduler, now), [(1, 0, 1)]);
    assert_eq!(next(&mut scheduler, now), [(2, 0, 1)]);
}

#[test]
fn a_starved_lane_gets_one_batch_and_queries_the_next() {
    let (mut scheduler, start) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[100; 50], start));
    let mut now = start;
    let mut bulk_steps = 0;
    for step in 0..40 {
        now += MAX_LANE_WAIT / 10;
        scheduler.push(job(100 + step, Lane::Online, &[100], now));
        let plan = next(&mut scheduler, now);
        assert_eq!(plan.len(), 1);
        bulk_steps += usize::from(plan[0].0 == 1);
    }
    // Four times the longest wait, with queries that fill every step: bulk had its turns.
    assert!((3..=4).contains(&bulk_steps), "{bulk_steps}");
}

#[test]
fn an_old_re_index_does_not_overtake_a_query() {
    let (mut scheduler, start) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Bulk, &[100; 50], start));
    let now = start + MAX_LANE_WAIT / 2;
    assert_eq!(next(&mut scheduler, now), [(1, 0, 1)]);
    let now = start + MAX_LANE_WAIT * 5 / 4;
    scheduler.push(job(2, Lane::Online, &[10], now));
    assert_eq!(next(&mut scheduler, now), [(2, 0, 1)]);
}

#[test]
fn bulk_steps_grow_while_no_query_came_lately() {
    let limits = StepLimits {
        saturation_budget: 400,
        ..LIMITS
    };
    let mut scheduler = Scheduler::new(limits, &[Stream::Normal]);
    let start = Instant::now();
    scheduler.push(job(1, Lane::Bulk, &[100; 50], start));
    assert_eq!(next(&mut scheduler, start), [(1, 0, 4)]);
    scheduler.push(job(2, Lane::Online, &[100], start));
    assert_eq!(next(&mut scheduler, start), [(2, 0, 1)]);
    let soon = start + ONLINE_MEMORY * 9 / 10;
    assert_eq!(next(&mut scheduler, soon), [(1, 4, 1)]);
    assert_eq!(next(&mut scheduler, start + ONLINE_MEMORY), [(1, 5, 4)]);
}

#[test]
fn dead_jobs_cost_nothing() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[10], now));
    scheduler.push(job(2, Lane::Bulk, &[10], now));
    scheduler.push(job(3, Lane::Online, &[10, 10], now));
    assert_eq!(
        scheduler.drop_dead(|id| id == JobId(3)),
        [JobId(1), JobId(2)]
    );
    assert_eq!(scheduler.queued_cost(), [20, 0, 0]);
    assert_eq!(next(&mut scheduler, now), [(3, 0, 2)]);
}

#[test]
fn a_job_that_died_since_the_last_sweep_is_dropped_where_it_would_be_picked() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    for id in 1..=3 {
        scheduler.push(job(id, Lane::Online, &[10], now));
    }
    let mut dropped = Vec::new();
    let plan = scheduler.next_plan(Stream::Normal, now, |id| id != JobId(2), &mut dropped);
    assert_eq!(picked(&plan.unwrap()), [(1, 0, 1), (3, 0, 1)]);
    assert_eq!(dropped, [JobId(2)]);
    assert_eq!(scheduler.queued_cost(), [0; 3]);
}

#[test]
fn a_job_that_dies_while_it_waits_for_its_rerun_is_told_of() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[1], now));
    scheduler.push(job(2, Lane::Online, &[1], now));
    let plan = scheduler
        .next_plan(Stream::Normal, now, |_| true, &mut Vec::new())
        .unwrap();
    assert!(scheduler.rerun_in_halves(plan, |_| 1));
    assert_eq!(scheduler.drop_dead(|id| id != JobId(1)), [JobId(1)]);
    let mut dropped = Vec::new();
    assert!(
        scheduler
            .next_plan(Stream::Normal, now, |_| false, &mut dropped)
            .is_none()
    );
    assert_eq!(dropped, [JobId(2)]);
}

#[test]
fn a_rerun_costs_what_is_left_of_it() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    for (id, cost) in [(1, 3), (2, 5), (3, 7)] {
        scheduler.push(job(id, Lane::Online, &[cost], now));
    }
    let run = |scheduler: &mut Scheduler, dead: u64| {
        scheduler.next_plan(Stream::Normal, now, |id| id.0 != dead, &mut Vec::new())
    };
    let plan = run(&mut scheduler, 0).unwrap();
    assert!(scheduler.rerun_in_halves(plan, |pick| [0, 3, 5, 7][pick.job.0 as usize]));
    assert_eq!(run(&mut scheduler, 0).unwrap().cost, 3);
    let rest = run(&mut scheduler, 2).unwrap();
    assert_eq!((rest.cost, picked(&rest)), (7, vec![(3, 0, 1)]));
}

#[test]
fn a_failed_batch_is_halved_until_the_culprit_is_alone() {
    let (mut scheduler, now) = (on_cpu(), Instant::now());
    scheduler.push(job(1, Lane::Online, &[1, 1, 1], now));
    scheduler.push(job(2, Lane::Online, &[1, 1], now));
    let culprit = (1, 2); // job, sequence
    let mut good = HashSet::new();
    let mut culprits = Vec::new();
    while let Some(plan) = scheduler.next_plan(Stream::Normal, now, |_| true, &mut Vec::new()) {
        let sequences: Vec<_> = picked(&plan)
            .into_iter()
            .flat_map(|(job, first, count)| (first..first + count).map(move |at| (job, at)))
            .collect();
        if !sequences.contains(&culprit) {
            good.extend(sequences);
        } else if !scheduler.rerun_in_halves(plan, |pick| pick.count as u64) {
            culprits.extend(sequences);
        }
    }
    assert_eq!(culprits, [culprit]);
    assert_eq!(good, HashSet::from([(1, 0), (1, 1), (2, 0), (2, 1)]));
}
