//! What a hostile load or a broken engine must not do.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, packed, v1};
use support::{HUGE, SPOILS, Worker, request, row_of, rows};
use tokio::time::Instant;

fn on_lane(mut request: v1::RunRequest, lane: v1::Lane) -> v1::RunRequest {
    request.lane = lane.into();
    request
}

#[tokio::test]
async fn a_full_bulk_lane_turns_no_query_away() {
    let worker = Worker::start(
        |c| c["cost_per_second"] = 10.into(),
        Duration::from_millis(100),
    );
    let client = worker.client().await;
    let bulk = |_| {
        let mut client = client.clone();
        let ask = on_lane(request(&[&[1; 32], &[1; 32]]), v1::Lane::Bulk);
        tokio::spawn(async move { client.run(ask).await })
    };
    let calls: Vec<_> = (0..8).map(bulk).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = client
        .clone()
        .run(request(&[&[7]]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(rows(&answer.outputs[0]), [row_of(&[7])]);
    let mut refused = 0;
    for call in calls {
        refused += usize::from(call.await.unwrap().is_err());
    }
    assert!(refused > 0, "the bulk lane was not full");
    worker.stop().await;
}

#[tokio::test]
async fn what_is_no_number_fails_its_own_request_only() {
    let worker = Worker::start(|_| {}, Duration::from_millis(50));
    let client = worker.client().await;
    let ask = |ids: u32| {
        let mut client = client.clone();
        tokio::spawn(async move { client.run(request(&[&[5, ids], &[6]])).await })
    };
    let busy = ask(1); // the others share the next step
    tokio::time::sleep(Duration::from_millis(20)).await;
    let calls = [ask(2), ask(SPOILS), ask(3), ask(4)];
    busy.await.unwrap().unwrap();
    for (call, id) in calls.into_iter().zip([2, SPOILS, 3, 4]) {
        match call.await.unwrap() {
            Ok(answer) => {
                let found = rows(&answer.into_inner().outputs[0]);
                assert_eq!(found, [row_of(&[5, id]), row_of(&[6])]);
            }
            Err(status) => {
                let error = Error::from(&status);
                assert_eq!((id, error.kind), (SPOILS, ErrorKind::EngineFailed));
                assert_eq!(error.index, Some(0));
            }
        }
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_query_does_not_wait_for_hundreds_of_open_bulk_calls() {
    let step = Duration::from_millis(10);
    let worker = Worker::start(|_| {}, step);
    let client = worker.client().await; // one connection, as a gateway has
    let calls: Vec<_> = (0..400)
        .map(|_| {
            let mut client = client.clone();
            let ask = on_lane(request(&[&[1; 32]]), v1::Lane::Bulk);
            tokio::spawn(async move { client.run(ask).await })
        })
        .collect();
    tokio::time::sleep(5 * step).await;
    let start = Instant::now();
    client.clone().run(request(&[&[7]])).await.unwrap();
    let waited = start.elapsed();
    assert!(waited < 50 * step, "{waited:?} of {:?}", 400 * step);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    worker.stop().await;
}

#[tokio::test]
async fn an_engine_that_fails_every_probe_is_given_up() {
    let broken = Worker::start_broken();
    until_faulted(&broken).await;
    broken.stop().await;
}

async fn until_faulted(worker: &Worker) {
    for _ in 0..100 {
        if worker.tulip.is_faulted() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it did not give up");
}

#[tokio::test]
async fn op_03_what_lacks_memory_alone_is_unavailable_and_the_second_time_gives_the_worker_up() {
    let worker = Worker::start(|_| {}, Duration::from_millis(30));
    let mut client = worker.client().await;
    let neighbour = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request(&[&[4], &[5]])).await }
    });
    for _ in 0..2 {
        assert!(!worker.tulip.is_faulted());
        let ask = request(&[&[1], &[HUGE]]);
        let error = Error::from(&client.run(ask).await.unwrap_err());
        assert_eq!(
            (error.kind, error.index),
            (ErrorKind::Unavailable, Some(1)),
            "{error}"
        );
        assert!(error.retry_after.is_some());
    }
    let answer = neighbour.await.unwrap().unwrap().into_inner();
    assert_eq!(rows(&answer.outputs[0]), [row_of(&[4]), row_of(&[5])]);
    until_faulted(&worker).await;
    worker.stop().await;
}

#[tokio::test]
async fn rows_beyond_the_tokens_of_a_sequence_are_refused() {
    let worker = Worker::start(|_| {}, Duration::ZERO);
    let mut ask = request(&[&[1, 2]]);
    ask.segments = packed::from_u32s(&[0, 0, 2].repeat(3));
    let error = Error::from(&worker.client().await.run(ask).await.unwrap_err());
    assert_eq!(
        (error.kind, error.index),
        (ErrorKind::InvalidInput, Some(0))
    );
    worker.stop().await;
}
