//! What a hostile load or a broken engine must not do.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, packed, v1};
use support::{Worker, request, row_of, rows};
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
    for _ in 0..100 {
        if broken.tulip.is_faulted() {
            broken.stop().await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("three failed probes did not make it give up");
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
