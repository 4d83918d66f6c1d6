//! When steps ran on each stream: from it come a step's time and the rate of the whole device.
//!
//! Steps of one stream run one after another, those of two streams side by side.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::scheduler::Stream;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    streams: HashMap<Stream, Track>,
}

/// A moment of one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) at: Instant,
    /// Cost that the other stream had done by then.
    pub(crate) beside: u64,
}

#[derive(Debug, Default)]
struct Track {
    num_in_flight: usize,
    done: u64, // cost of all steps that ended well
    last_end: Option<Mark>,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepRun {
    /// From its launch, or the end of the step before it on its stream, to its end.
    pub(crate) ran_for: Duration,
    /// Cost that the device did in that time, both streams together; `None` where it says nothing
    /// of the rate, since a longer step of the other stream ran beside it.
    pub(crate) device_cost: Option<u64>,
}

// === impl Timeline ===

impl Timeline {
    /// Notes that a step was handed out.
    pub(crate) fn launch(&mut self, stream: Stream, now: Instant) -> Mark {
        let beside = self.done_beside(stream);
        self.streams.entry(stream).or_default().num_in_flight += 1;
        Mark { at: now, beside }
    }

    /// Notes that a step left the device, with rows or without.
    pub(crate) fn land(&mut self, stream: Stream) {
        self.streams.entry(stream).or_default().num_in_flight -= 1;
    }

    /// When a step that was launched at `launched` began, if those before it have ended.
    pub(crate) fn began(&self, stream: Stream, launched: Mark) -> Mark {
        match self.last_end(stream) {
            Some(end) if end.at > launched.at => end,
            _ => launched,
        }
    }

    /// Notes that a step which has landed gave rows.
    pub(crate) fn finish(
        &mut self,
        stream: Stream,
        launched: Mark,
        finished: Instant,
        cost: u64,
    ) -> StepRun {
        let began = self.began(stream, launched);
        let beside = self.done_beside(stream);
        let done_beside = beside - began.beside;
        // Online steps are short: those that ended meanwhile ran beside this one. The other way
        // round, most of a long step's time lies outside of this one's.
        let runs_alone = done_beside == 0 && !self.is_busy_beside(stream);
        let is_measure = stream == Stream::Normal || runs_alone;
        let track = self.streams.entry(stream).or_default();
        track.done += cost;
        track.last_end = Some(Mark {
            at: finished,
            beside,
        });
        StepRun {
            ran_for: finished.saturating_duration_since(began.at),
            device_cost: is_measure.then_some(cost + done_beside),
        }
    }

    fn last_end(&self, stream: Stream) -> Option<Mark> {
        self.streams.get(&stream)?.last_end
    }

    fn others(&self, stream: Stream) -> impl Iterator<Item = &Track> {
        let others = self.streams.iter().filter(move |(s, _)| **s != stream);
        others.map(|(_, track)| track)
    }

    fn done_beside(&self, stream: Stream) -> u64 {
        self.others(stream).map(|track| track.done).sum()
    }

    fn is_busy_beside(&self, stream: Stream) -> bool {
        self.others(stream).any(|track| track.num_in_flight > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Lands and ends a step.
    fn end(
        timeline: &mut Timeline,
        stream: Stream,
        launched: Mark,
        at: Instant,
        cost: u64,
    ) -> StepRun {
        timeline.land(stream);
        timeline.finish(stream, launched, at, cost)
    }

    #[test]
    fn the_second_of_two_steps_in_flight_begins_when_the_first_ends() {
        let (mut timeline, start) = (Timeline::default(), Instant::now());
        let first = timeline.launch(Stream::Normal, start);
        let second = timeline.launch(Stream::Normal, start + MS);
        assert_eq!(timeline.began(Stream::Normal, second).at, start + MS);
        let run = end(&mut timeline, Stream::Normal, first, start + 20 * MS, 2_000);
        assert_eq!((run.ran_for, run.device_cost), (20 * MS, Some(2_000)));
        assert_eq!(timeline.began(Stream::Normal, second).at, start + 20 * MS);
        let run = end(
            &mut timeline,
            Stream::Normal,
            second,
            start + 35 * MS,
            1_500,
        );
        assert_eq!((run.ran_for, run.device_cost), (15 * MS, Some(1_500)));
        let late = timeline.launch(Stream::Normal, start + 50 * MS);
        let run = end(&mut timeline, Stream::Normal, late, start + 60 * MS, 1_000);
        assert_eq!((run.ran_for, run.device_cost), (10 * MS, Some(1_000)));
    }

    /// 5 ms of online work every 10 ms beside normal steps of 20 ms: the device does both.
    #[test]
    fn the_rate_is_that_of_both_streams_together() {
        let (mut timeline, start) = (Timeline::default(), Instant::now());
        let mut normal = timeline.launch(Stream::Normal, start);
        let (mut cost, mut time) = (0, Duration::ZERO);
        for tick in 1..=40 {
            let now = start + 10 * tick * MS;
            let online = timeline.launch(Stream::Online, now - 6 * MS);
            let run = end(&mut timeline, Stream::Online, online, now - MS, 100);
            assert_eq!((run.ran_for, run.device_cost), (5 * MS, None));
            if tick % 2 == 0 {
                let next = timeline.launch(Stream::Normal, now - MS);
                let run = end(&mut timeline, Stream::Normal, normal, now, 2_000);
                cost += run.device_cost.unwrap_or_default();
                time += run.ran_for;
                normal = next;
            }
        }
        assert_eq!(time, 400 * MS);
        assert_eq!(cost, 20 * 2_000 + 40 * 100);
    }

    #[test]
    fn an_online_step_alone_measures_the_device_too() {
        let (mut timeline, start) = (Timeline::default(), Instant::now());
        let online = timeline.launch(Stream::Online, start);
        let run = end(&mut timeline, Stream::Online, online, start + 5 * MS, 600);
        assert_eq!(run.device_cost, Some(600));
        let normal = timeline.launch(Stream::Normal, start + 10 * MS);
        let online = timeline.launch(Stream::Online, start + 12 * MS);
        end(
            &mut timeline,
            Stream::Normal,
            normal,
            start + 14 * MS,
            2_000,
        );
        let run = end(&mut timeline, Stream::Online, online, start + 16 * MS, 600);
        assert_eq!(run.device_cost, None, "the normal step ended meanwhile");
    }
}
