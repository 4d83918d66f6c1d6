//! Two streams with two steps in flight each, on a device that works while the puller does not wait.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flowerbed_protocol::{Error, ErrorKind, v1};
use flowerbed_tulip::batch::Batch;
use flowerbed_tulip::scheduler::Stream;
use flowerbed_tulip::{PendingRows, StepFault, Tulip};
use parking_lot::Mutex;
use support::{
    POISON, Worker, ask_health, channel_to, fake_step, health_of, request, row_of, rows,
    until_serving,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Status;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

const SHORT: Duration = Duration::from_millis(5);
const LONG: Duration = Duration::from_millis(150);
/// The event of a step with this id comes with a fault.
const FAULT: u32 = 700;
/// Its event comes seconds later.
const HANG: u32 = 701;
/// It takes three times as long as others.
const SLOW: u32 = 702;

/// A device on which each stream's steps run one after another.
#[derive(Default)]
struct Gpu {
    free_at: Mutex<HashMap<Stream, Instant>>,
    in_flight: [AtomicUsize; 2],
    most_in_flight: [AtomicUsize; 2],
    streams: Mutex<Vec<Stream>>, // of each step
}

/// The rows of one step, and the event that they come with.
struct Flight {
    gpu: Arc<Gpu>,
    stream: Stream,
    done_at: Instant,
    rows: Result<Bytes, String>,
}

impl Gpu {
    fn launch(self: &Arc<Self>, batch: &Batch) -> Box<Flight> {
        let stream = batch.plan.stream;
        let takes = match stream {
            _ if batch.ids.contains(&HANG) => 20 * LONG,
            _ if batch.ids.contains(&SLOW) => 3 * LONG,
            Stream::Online => SHORT,
            Stream::Normal => LONG,
        };
        let mut free_at = self.free_at.lock();
        let now = Instant::now();
        let starts = free_at.get(&stream).map_or(now, |free| now.max(*free));
        free_at.insert(stream, starts + takes);
        self.streams.lock().push(stream);
        let in_flight = self.in_flight[stream as usize].fetch_add(1, Ordering::SeqCst) + 1;
        self.most_in_flight[stream as usize].fetch_max(in_flight, Ordering::SeqCst);
        let fault = "cuEventSynchronize gave CUDA_ERROR_ILLEGAL_ADDRESS (700)";
        Box::new(Flight {
            gpu: Arc::clone(self),
            stream,
            done_at: starts + takes,
            rows: if batch.ids.contains(&FAULT) {
                Err(fault.to_owned())
            } else {
                Ok(fake_step(batch))
            },
        })
    }

    fn num_in_flight(&self) -> usize {
        self.in_flight
            .iter()
            .map(|n| n.load(Ordering::SeqCst))
            .sum()
    }
}

impl PendingRows for Flight {
    fn wait(&mut self) -> Result<(), String> {
        std::thread::sleep(self.done_at.saturating_duration_since(Instant::now()));
        self.rows.clone().map(drop)
    }

    fn take(self: Box<Self>) -> Bytes {
        self.rows.clone().unwrap()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.gpu.in_flight[self.stream as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

fn on_a_gpu(change: impl FnOnce(&mut serde_json::Value), give_up: fn()) -> (Worker, Arc<Gpu>) {
    let gpu = Arc::new(Gpu::default());
    let device = Arc::clone(&gpu);
    let step = move |tulip: &Tulip, batch: Batch| {
        if batch.ids.contains(&POISON) {
            tulip.failed(batch.id, "poison".to_owned(), StepFault::Input);
        } else {
            tulip.launched(batch.id, device.launch(&batch), "replay".to_owned(), 0);
        }
    };
    let configure = |config: &mut serde_json::Value| {
        config["streams"] = serde_json::json!(["online", "normal"]);
        config["steps_in_flight"] = 2.into();
        change(config);
    };
    (Worker::start_engine(configure, give_up, step), gpu)
}

fn no_hang() {
    panic!("no step hangs here");
}

type Answer = Result<v1::RunResponse, Status>;

/// Sends each sequence in a call of its own; the answer comes with its time.
async fn call(
    worker: &Worker,
    lane: v1::Lane,
    sequences: &[&[u32]],
) -> Vec<JoinHandle<(Answer, Instant)>> {
    let client = worker.client().await;
    let calls = sequences.iter().map(|ids| {
        let mut client = client.clone();
        let request = v1::RunRequest {
            lane: lane.into(),
            ..request(&[ids])
        };
        tokio::spawn(async move {
            let answer = client.run(request).await;
            (answer.map(tonic::Response::into_inner), Instant::now())
        })
    });
    calls.collect()
}

async fn kind_of(call: JoinHandle<(Answer, Instant)>) -> Option<ErrorKind> {
    let answer = call.await.unwrap().0;
    answer.err().map(|status| Error::from(&status).kind)
}

#[tokio::test]
async fn a_query_is_answered_while_a_longer_step_is_on_the_device() {
    let (worker, gpu) = on_a_gpu(|_| {}, no_hang);
    until_serving(&worker).await;
    assert_eq!(
        *gpu.streams.lock(),
        [Stream::Online],
        "the probe is a query"
    );
    let mut bulk = call(&worker, v1::Lane::Bulk, &[&[2; 32], &[3; 32]]).await;
    tokio::time::sleep(LONG / 3).await;
    let mut query = call(&worker, v1::Lane::Online, &[&[4; 3]]).await;
    let (answer, answered) = query.remove(0).await.unwrap();
    assert_eq!(rows(&answer.unwrap().outputs[0])[0], row_of(&[4; 3]));
    for (id, call) in (2..).zip(bulk.drain(..)) {
        let (answer, at) = call.await.unwrap();
        assert_eq!(rows(&answer.unwrap().outputs[0])[0], row_of(&[id; 32]));
        assert!(
            answered < at,
            "the query came later, and was answered before"
        );
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_query_that_is_held_back_runs_when_its_patience_ends_though_nothing_else_comes() {
    let (worker, _gpu) = on_a_gpu(|_| {}, no_hang);
    until_serving(&worker).await;
    // The share of queries is used up by steps that are full.
    for call in call(&worker, v1::Lane::Online, &[&[5; 32][..]; 40]).await {
        call.await.unwrap().0.unwrap();
    }
    let mut bulk = call(&worker, v1::Lane::Bulk, &[&[SLOW; 32]]).await;
    tokio::time::sleep(LONG / 5).await;
    let mut query = call(&worker, v1::Lane::Online, &[&[4; 3]]).await;
    let (answer, answered) = query.remove(0).await.unwrap();
    let stats = answer.unwrap().stats.unwrap();
    assert!(stats.queue_us >= 2_000, "{stats:?}");
    assert!(
        answered < bulk.remove(0).await.unwrap().1,
        "beside the step"
    );
    worker.stop().await;
}

#[tokio::test]
async fn two_steps_are_in_flight_on_a_stream_and_the_time_of_none_counts_twice() {
    let (worker, gpu) = on_a_gpu(|_| {}, no_hang);
    until_serving(&worker).await;
    let started = Instant::now();
    let calls = call(&worker, v1::Lane::Bulk, &[&[2; 32][..]; 5]).await;
    let mut step_time = Duration::ZERO;
    for call in calls {
        let stats = call.await.unwrap().0.unwrap().stats.unwrap();
        assert_eq!((stats.num_steps, stats.mode.as_str()), (1, "replay"));
        step_time += Duration::from_micros(stats.step_us);
    }
    let elapsed = started.elapsed();
    assert!(elapsed >= 5 * LONG);
    assert!(
        5 * LONG - SHORT <= step_time && step_time <= elapsed,
        "{step_time:?}"
    );
    let most = gpu
        .most_in_flight
        .each_ref()
        .map(|n| n.load(Ordering::SeqCst));
    assert_eq!(most, [1, 2]);
    worker.stop().await;
}

#[tokio::test]
async fn a_step_that_raises_beside_another_fails_its_culprit_alone() {
    let (worker, _) = on_a_gpu(|_| {}, no_hang);
    until_serving(&worker).await;
    let long = call(&worker, v1::Lane::Bulk, &[&[2; 32]]).await;
    tokio::time::sleep(LONG / 3).await;
    let (good, bad): (&[u32], &[u32]) = (&[5; 8], &[POISON; 8]);
    let calls = call(&worker, v1::Lane::Bulk, &[good, bad, good, good]).await;
    let mut kinds = Vec::new();
    for call in long.into_iter().chain(calls) {
        kinds.push(kind_of(call).await);
    }
    let expected = [None, None, Some(ErrorKind::EngineFailed), None, None];
    assert_eq!(kinds, expected);
    worker.stop().await;
}

#[tokio::test]
async fn a_fault_fails_the_steps_of_both_streams_and_the_puller_ends_after_them() {
    let (worker, gpu) = on_a_gpu(|_| {}, no_hang);
    until_serving(&worker).await;
    let mut watcher = HealthClient::new(channel_to(worker.tulip.address()).await);
    let mut health = watcher.watch(ask_health()).await.unwrap().into_inner();
    let first = health.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let mut bulk = call(&worker, v1::Lane::Bulk, &[&[2; 32], &[2; 32], &[2; 32]]).await;
    tokio::time::sleep(LONG / 3).await;
    let fault = call(&worker, v1::Lane::Online, &[&[FAULT]]).await;
    bulk.extend(fault);
    for call in bulk {
        assert_eq!(kind_of(call).await, Some(ErrorKind::Unavailable));
    }
    assert!(worker.tulip.is_faulted());
    let then = health.message().await.unwrap().unwrap();
    assert_eq!(then.status(), ServingStatus::NotServing);
    assert!(gpu.num_in_flight() > 0, "the normal stream still works");
    worker.join_engine().await;
    assert_eq!(gpu.num_in_flight(), 0);
    assert_eq!(
        gpu.most_in_flight[Stream::Normal as usize].load(Ordering::SeqCst),
        2
    );
}

#[tokio::test]
async fn a_step_that_waited_behind_another_is_not_taken_for_hanging() {
    // A step is within the limit, two in a row are not.
    let limit = |c: &mut serde_json::Value| c["step_timeout_s"] = (5 * LONG).as_secs_f64().into();
    let (worker, _) = on_a_gpu(limit, no_hang);
    until_serving(&worker).await;
    for call in call(&worker, v1::Lane::Bulk, &[&[SLOW; 32][..]; 5]).await {
        assert_eq!(kind_of(call).await, None);
    }
    assert_eq!(health_of(&worker).await, ServingStatus::Serving);
    worker.stop().await;
}

static GIVEN_UP: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn an_event_that_never_comes_is_noticed_beside_steps_that_go_on() {
    let (worker, _) = on_a_gpu(
        |c| c["step_timeout_s"] = 0.5.into(),
        || GIVEN_UP.store(true, Ordering::SeqCst),
    );
    until_serving(&worker).await;
    let mut hanging = call(&worker, v1::Lane::Bulk, &[&[HANG; 32]]).await;
    let started = Instant::now();
    while !worker.tulip.is_faulted() {
        for call in call(&worker, v1::Lane::Online, &[&[4]]).await {
            let kind = kind_of(call).await;
            assert!(
                matches!(kind, None | Some(ErrorKind::Unavailable)),
                "{kind:?}"
            );
        }
        assert!(started.elapsed() < 10 * LONG);
    }
    assert_eq!(
        kind_of(hanging.remove(0)).await,
        Some(ErrorKind::Unavailable)
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(GIVEN_UP.load(Ordering::SeqCst));
    worker.stop().await;
}
