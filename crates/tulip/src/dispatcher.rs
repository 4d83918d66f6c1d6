//! The one task that owns the scheduler. Everybody else sends it commands.
//!
//! It forms a batch only when Python asks for one and its stream has a free slot, so that what
//! arrives meanwhile still gets in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use flowerbed_protocol::{CostModel, Error, ErrorKind, limits, v1};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::batch::Batch;
use crate::command::{self, Command, CommandSender, Submission};
use crate::config::WorkerConfig;
use crate::fault::{OutOfMemory, StepFault, unavailable};
use crate::job::{JobState, STATUS_NOT_FINITE, StepTimes};
use crate::metrics::{Metrics, Shed};
use crate::scheduler::{Job, JobId, Lane, Pick, Plan, Scheduler, StepLimits, Stream};
use crate::share::Share;
use crate::state::State;
use crate::timeline::{Mark, Timeline};
use crate::waiter::Completed;

/// How many commands may wait; a full channel makes the senders wait.
const COMMANDS: usize = 1_024;
/// Work of callers that hung up is freed this soon, or within a step if that takes longer.
const SWEEP_INTERVAL: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    config: Arc<WorkerConfig>,
    state: Arc<State>,
    metrics: Arc<Metrics>,
    cost: CostModel,
    scheduler: Scheduler,
    jobs: HashMap<JobId, JobState>,
    in_flight: HashMap<u64, InFlight>,
    free_slots: HashMap<Stream, usize>,
    timeline: Timeline,
    online_share: Share,
    last_landed: Instant,
    puller: Option<SyncSender<Batch>>,
    out_of_memory: OutOfMemory,
    last_sweep: Instant,
    next_id: u64,
}

#[derive(Debug)]
struct InFlight {
    batch: Batch,
    handed_out: Mark,
}

// === impl Dispatcher ===

impl Dispatcher {
    pub(crate) fn new(config: Arc<WorkerConfig>, state: Arc<State>, metrics: Arc<Metrics>) -> Self {
        let limits = StepLimits {
            budget: config.max_batch_tokens,
            online_budget: config.online_batch_tokens,
            beside_budget: config.beside_batch_tokens,
            saturation_budget: config.saturation_batch_tokens.max(config.max_batch_tokens),
            slots: config.max_batch_sequences,
            result_bytes: limits::MAX_RESULT_BYTES as u64,
        };
        Self {
            cost: CostModel::new(config.model.attention_scale),
            scheduler: Scheduler::new(limits, &config.streams),
            jobs: HashMap::new(),
            in_flight: HashMap::new(),
            free_slots: config
                .streams
                .iter()
                .map(|s| (*s, config.steps_in_flight))
                .collect(),
            timeline: Timeline::default(),
            online_share: Share::default(),
            last_landed: Instant::now(),
            puller: None,
            out_of_memory: OutOfMemory::default(),
            last_sweep: Instant::now(),
            next_id: 0,
            config,
            state,
            metrics,
        }
    }

    pub(crate) fn channel() -> (CommandSender, mpsc::Receiver<Command>) {
        mpsc::channel(COMMANDS)
    }

    /// Serves commands until every sender is gone.
    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut wake_at = None;
        while let Some(command) = command::next(&mut commands, wake_at).await {
            self.apply(command);
            // What has arrived meanwhile belongs in the same batch; but a flood must not keep the
            // device waiting.
            for _ in 0..COMMANDS {
                let Ok(command) = commands.try_recv() else {
                    break;
                };
                self.apply(command);
            }
            wake_at = self.dispatch();
            self.metrics.queued_cost(self.scheduler.queued_cost());
            let starts = self.in_flight.values().map(|flight| {
                let stream = flight.batch.plan.stream;
                self.timeline.began(stream, flight.handed_out).at
            });
            self.state.set_in_flight(starts.min(), self.last_landed);
            self.state.set_neglected(self.is_neglected());
        }
    }

    /// Whether the puller should come, to take work or to be told that there is none any more. Between
    /// two steps it has next to nothing to do.
    fn is_neglected(&self) -> bool {
        let is_due = !self.scheduler.is_empty() || self.state.is_faulted();
        is_due && self.puller.is_none() && self.in_flight.is_empty()
    }

    fn apply(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(submission),
            Command::NextBatch(puller) => self.puller = Some(puller),
            Command::Completed(completed) => self.complete(completed),
            Command::Failed {
                batch_id,
                reason,
                fault,
            } => {
                self.fail(batch_id, &reason, fault);
            }
            Command::GiveUp(reason) => self.device_fault(&reason, None),
            Command::Wake => {}
            Command::Drain => self.state.set_draining(),
            Command::Cut => self.cut(),
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            chunk,
            deadline,
            reply,
            is_probe,
        } = submission;
        let costs: Arc<[u64]> = chunk
            .sequences
            .iter()
            .map(|s| self.cost.cost(u64::from(s.len)))
            .collect();
        if !is_probe && let Err(error) = self.admit(chunk.lane, costs.iter().sum()) {
            let is_full = error.kind == ErrorKind::Overloaded;
            self.metrics.shed(if is_full {
                Shed::Overloaded
            } else {
                Shed::Unavailable
            });
            let _ = reply.send(Err(error));
            return;
        }
        let now = Instant::now();
        if chunk.lane == Lane::Online {
            self.state.awake.touch();
        }
        let id = JobId(self.new_id());
        let job = Job {
            id,
            lane: chunk.lane,
            head: chunk.head,
            costs,
            result_bytes: chunk.result_bytes().collect(),
            enqueued: now,
        };
        let state = JobState::new(Arc::new(chunk), Arc::clone(&job.costs), deadline, reply);
        self.jobs.insert(id, state);
        if is_probe {
            self.scheduler.push_front(job);
        } else {
            self.scheduler.push(job);
        }
    }

    /// An empty queue admits anything within the limits; else the queue limit holds. Work of lower
    /// lanes does not count: a re-index must not turn queries away.
    fn admit(&mut self, lane: Lane, cost: u64) -> Result<(), Error> {
        if self.state.is_faulted() {
            return Err(StepFault::Device.error());
        }
        if self.state.is_draining() {
            return Err(unavailable("this worker is shutting down"));
        }
        if self.queued_before(lane) + cost > self.queue_limit() {
            self.sweep();
        }
        let queued = self.queued_before(lane);
        if queued == 0 || queued + cost <= self.queue_limit() {
            return Ok(());
        }
        let message = format!("the queue holds {queued} tokens of work; try again later");
        Err(Error::new(ErrorKind::Overloaded, message).after(self.state.time_to_run(queued)))
    }

    /// Cost that is served before a new job of `lane`.
    fn queued_before(&self, lane: Lane) -> u64 {
        self.scheduler.queued_cost()[..=lane as usize].iter().sum()
    }

    fn queue_limit(&self) -> u64 {
        self.state.queue_limit(self.config.max_batch_tokens)
    }

    /// Hands Python the next batch, if it waits for one and a stream has a slot and work. Returns
    /// when to try again, where queries are held back.
    fn dispatch(&mut self) -> Option<Instant> {
        let puller = self.puller.take()?;
        if self.state.is_faulted() {
            // What the steps in flight read and write is kept until the puller ends.
            self.puller = (!self.in_flight.is_empty()).then_some(puller);
            return None;
        }
        self.sweep();
        let now = Instant::now();
        let mut wake_at = None;
        let is_busy_beside = self
            .free_slots
            .get(&Stream::Normal)
            .is_some_and(|free| *free < self.config.steps_in_flight);
        self.scheduler.set_busy_beside(is_busy_beside);
        for stream in self.config.streams.clone() {
            if self.free_slots.get(&stream).copied().unwrap_or(0) == 0 {
                continue;
            }
            if stream == Stream::Online
                && is_busy_beside
                && let Some(since) = self.scheduler.few_online_since()
            {
                wake_at = self.online_share.held_back_until(since, now);
                if wake_at.is_some() {
                    continue;
                }
            }
            let jobs = &self.jobs;
            let is_wanted = |id| jobs.get(&id).is_some_and(|job| job.is_wanted(now));
            let mut dropped = Vec::new();
            let plan = self
                .scheduler
                .next_plan(stream, now, is_wanted, &mut dropped);
            self.forget(dropped);
            if let Some(plan) = plan {
                self.hand_out(plan, &puller);
                return None;
            }
        }
        let is_drained =
            self.state.is_draining() && self.scheduler.is_empty() && self.in_flight.is_empty();
        if !is_drained {
            self.puller = Some(puller);
        }
        wake_at
    }

    fn hand_out(&mut self, plan: Plan, puller: &SyncSender<Batch>) {
        let chunks: Vec<_> = plan
            .picks
            .iter()
            .filter_map(|pick| self.jobs.get(&pick.job).map(|job| Arc::clone(&job.chunk)))
            .collect();

        let batch = Batch::pack(self.new_id(), plan, &chunks);
        if let Some(slots) = self.free_slots.get_mut(&batch.plan.stream) {
            *slots -= 1;
        }
        let handed_out = self.timeline.launch(batch.plan.stream, Instant::now());
        self.in_flight.insert(
            batch.id,
            InFlight {
                batch: batch.clone(),
                handed_out,
            },
        );
        if puller.send(batch).is_err() {
            tracing::error!("the thread that pulls batches is gone");
        }
    }

    fn complete(&mut self, completed: Completed) {
        let Some(InFlight { batch, handed_out }) =
            self.land(completed.batch_id, completed.finished)
        else {
            return;
        };
        let expected = batch.num_result_bytes + batch.num_rows();
        let rows = match completed.rows {
            Ok(rows) if rows.len() == expected => rows,
            Ok(rows) => {
                let reason = format!("step gave {} bytes instead of {expected}", rows.len());
                self.fail_all(&batch, &reason, StepFault::Input);
                return;
            }
            Err(reason) => {
                self.device_fault(&reason, Some(&batch));
                return;
            }
        };
        let stream = batch.plan.stream;
        let launched = Mark {
            at: completed.started,
            ..handed_out
        };
        let cost = batch.plan.cost;
        let run = self
            .timeline
            .finish(stream, launched, completed.finished, cost);
        let times = StepTimes {
            started: completed.started,
            ran_for: run.ran_for,
            copied_in: completed.copied_in,
            mode: completed.mode,
            padding_tokens: completed.padding_tokens,
        };
        if stream == Stream::Online {
            self.online_share.spend(run.ran_for, completed.finished);
        }
        self.state.count_step(cost, run, completed.finished);
        self.metrics
            .step(&times.mode, times.ran_for, times.copied_in);
        self.metrics
            .step_tokens(batch.ids.len(), times.padding_tokens);
        // Kernels may mix what is no number into the rows beside it: only its own input is to fail.
        if rows[batch.num_result_bytes..].contains(&STATUS_NOT_FINITE)
            && self.rerun_in_halves(&batch)
        {
            return;
        }
        self.store_rows(&batch, &rows);
        for pick in &batch.plan.picks {
            let Some(job) = self.jobs.get_mut(&pick.job) else {
                continue;
            };
            self.metrics
                .queued_for(job.chunk.lane, job.waited(times.started));
            let is_last = job.count_step(pick.count, &times);
            if is_last && let Some(job) = self.jobs.remove(&pick.job) {
                job.answer(self.load());
            }
        }
    }

    fn store_rows(&mut self, batch: &Batch, rows: &[u8]) {
        let (data, statuses) = rows.split_at(batch.num_result_bytes);
        for run in &batch.runs {
            let id = batch.plan.picks[run.pick].job;
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            let bytes = &data[run.offset..run.offset + run.num_rows * run.row_bytes];
            let states = &statuses[run.first_status..run.first_status + run.num_rows];
            if let Err(error) = job.store(run, bytes, states, &self.config.model.dtype)
                && let Some(job) = self.jobs.remove(&id)
            {
                self.metrics.shed(Shed::EngineFailed);
                job.fail(error);
            }
        }
    }

    fn fail(&mut self, batch_id: u64, reason: &str, fault: StepFault) {
        let Some(InFlight { batch, .. }) = self.land(batch_id, Instant::now()) else {
            return;
        };
        if fault == StepFault::Device {
            self.device_fault(reason, Some(&batch));
            return;
        }
        let num_sequences = batch.num_sequences();
        tracing::error!(batch = batch_id, num_sequences, reason, "a step failed");
        if !self.rerun_in_halves(&batch) {
            self.fail_all(&batch, reason, fault);
        }
    }

    fn rerun_in_halves(&mut self, batch: &Batch) -> bool {
        let jobs = &self.jobs;
        let cost_of = |pick: &Pick| jobs.get(&pick.job).map_or(0, |job| job.cost_of(pick));
        self.scheduler.rerun_in_halves(batch.plan.clone(), cost_of)
    }

    fn fail_all(&mut self, batch: &Batch, reason: &str, fault: StepFault) {
        tracing::error!(batch = batch.id, reason, "the requests of this step fail");
        let mut num_failed = 0;
        for pick in &batch.plan.picks {
            if let Some(job) = self.jobs.remove(&pick.job) {
                let index = u32::try_from(pick.first).unwrap_or(u32::MAX);
                self.metrics.shed(fault.shed());
                job.fail(fault.error().at_index(index));
                num_failed += 1;
            }
        }
        if fault == StepFault::Memory && num_failed > 0 && self.out_of_memory.is_second() {
            self.device_fault("out of memory twice within a minute", None);
        }
    }

    /// Only a restart mends this: nobody who waits here will be served. What was in flight, `failed`
    /// included, is told so, since it may be the cause and is not to be tried elsewhere.
    fn device_fault(&mut self, reason: &str, failed: Option<&Batch>) {
        tracing::error!(
            reason,
            jobs = self.jobs.len(),
            "the device failed; this worker must restart"
        );
        self.state.set_faulted();
        let flights = self.in_flight.values().map(|flight| &flight.batch);
        let picks = flights.chain(failed).flat_map(|batch| &batch.plan.picks);
        let ran: HashMap<_, _> = picks.map(|pick| (pick.job, pick.first)).collect();
        for (id, job) in self.jobs.drain() {
            self.metrics.shed(StepFault::Device.shed());
            job.fail(StepFault::lost(ran.get(&id).copied()));
        }
    }

    fn cut(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        tracing::warn!(
            jobs = self.jobs.len(),
            "the time to drain is over; refusing what is left"
        );
        self.state.set_cut();
        for (_, job) in self.jobs.drain() {
            self.metrics.shed(Shed::Unavailable);
            job.fail(unavailable("this worker is shutting down"));
        }
        self.last_sweep = Instant::now() - SWEEP_INTERVAL;
        self.sweep();
    }

    fn land(&mut self, batch_id: u64, at: Instant) -> Option<InFlight> {
        let flight = self.in_flight.remove(&batch_id)?;
        let stream = flight.batch.plan.stream;
        if let Some(slots) = self.free_slots.get_mut(&stream) {
            *slots += 1;
        }
        self.timeline.land(stream);
        self.last_landed = self.last_landed.max(at);
        Some(flight)
    }

    /// Drops what nobody waits for, wherever it is queued. At most every [`SWEEP_INTERVAL`]: it
    /// walks the whole queue.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.last_sweep) < SWEEP_INTERVAL {
            return;
        }
        self.last_sweep = now;
        let jobs = &self.jobs;
        let is_wanted = |id| jobs.get(&id).is_some_and(|job| job.is_wanted(now));
        let dropped = self.scheduler.drop_dead(is_wanted);
        self.forget(dropped);
    }

    /// Answers jobs that the scheduler dropped.
    fn forget(&mut self, dropped: Vec<JobId>) {
        for id in dropped {
            if let Some(job) = self.jobs.remove(&id) {
                self.metrics.shed(job.expire());
            }
        }
    }

    fn load(&self) -> v1::Load {
        v1::Load {
            queued_cost: self.scheduler.queued_cost().to_vec(),
            cost_per_second: self.state.cost_per_second(),
            queue_limit: self.queue_limit(),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
