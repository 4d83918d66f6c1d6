//! Chunks in, rows out: order, formats, segments, and what is refused.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, packed, v1};
use support::{DIMENSIONS, NAN, POISON, VOCAB, Worker, request, row_of, rows};

fn quick() -> Worker {
    Worker::start(|_| {}, Duration::ZERO)
}

async fn refusal(worker: &Worker, request: v1::RunRequest) -> Error {
    Error::from(&worker.client().await.run(request).await.unwrap_err())
}

#[tokio::test]
async fn describe_tells_what_the_worker_serves() {
    let worker = quick();
    let answer = worker
        .client()
        .await
        .describe(v1::DescribeRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.protocol, flowerbed_protocol::PROTOCOL_VERSION);
    let model = &answer.models[0];
    assert_eq!(
        (model.id.as_str(), model.space.as_str()),
        ("fake", "space-1")
    );
    assert_eq!(
        (model.max_length, model.vocab_rows, model.dimensions),
        (64, VOCAB, DIMENSIONS)
    );
    assert_eq!(model.queue_limit, 10_000_000);
    worker.stop().await;
}

#[tokio::test]
async fn rows_come_back_in_order_over_many_steps() {
    let worker = quick();
    let sequences: Vec<Vec<u32>> = (1..=60).map(|n| (1..=n).collect()).collect();
    let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let answer = worker
        .client()
        .await
        .run(request(&slices))
        .await
        .unwrap()
        .into_inner();
    let expected: Vec<Vec<f32>> = slices.iter().map(|ids| row_of(ids).to_vec()).collect();
    assert_eq!(rows(&answer.outputs[0]), expected);
    let stats = answer.stats.unwrap();
    assert!(stats.num_steps > 30, "a budget of 32 tokens: {stats:?}");
    assert_eq!(stats.mode, "eager");
    worker.stop().await;
}

#[tokio::test]
async fn concurrent_chunks_get_their_own_rows() {
    let worker = quick();
    let client = worker.client().await;
    let calls = (1..=200_u32).map(|n| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let ids = [n, n + 1, n + 2];
            let answer = client
                .run(request(&[&ids, &[n]]))
                .await
                .unwrap()
                .into_inner();
            let expected = [row_of(&ids).to_vec(), row_of(&[n]).to_vec()];
            assert_eq!(rows(&answer.outputs[0]), expected);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test]
async fn formats_and_segments_mix_in_one_chunk() {
    let worker = quick();
    let mut ask = request(&[&[1, 2, 3, 4], &[5, 6]]);
    ask.segments = packed::from_u32s(&[0, 0, 1, 0, 1, 4, 1, 0, 2]);
    ask.outputs.push(v1::OutputSpec {
        dimensions: 2,
        ..ask.outputs[0]
    });
    let answer = worker.client().await.run(ask).await.unwrap().into_inner();
    let expected = [row_of(&[1]), row_of(&[2, 3, 4]), row_of(&[5, 6])];
    assert_eq!(rows(&answer.outputs[0]), expected.map(Vec::from));
    assert_eq!(answer.outputs[1].shape, [3, 2]);
    assert_eq!(
        rows(&answer.outputs[1]),
        expected.map(|row| row[..2].to_vec())
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_caller_is_not_trusted() {
    let worker = quick();
    let good = || request(&[&[1, 2], &[3]]);
    type Spoil = fn(&mut v1::RunRequest);
    let cases: [(Spoil, ErrorKind, &str, Option<u32>); 14] = [
        (
            |r| r.model = "other".into(),
            ErrorKind::NotFound,
            "model",
            None,
        ),
        (
            |r| r.space = "space-0".into(),
            ErrorKind::WrongSpace,
            "space",
            None,
        ),
        (
            |r| r.head = v1::Head::Score.into(),
            ErrorKind::InvalidInput,
            "head",
            None,
        ),
        (|r| r.head = 99, ErrorKind::InvalidInput, "head", None),
        (
            |r| r.ids = r.ids.slice(1..),
            ErrorKind::InvalidInput,
            "ids",
            None,
        ),
        (
            |r| r.ids = r.ids.slice(4..),
            ErrorKind::InvalidInput,
            "lengths",
            None,
        ),
        (
            |r| r.ids = packed::from_u32s(&[1, 2, VOCAB]),
            ErrorKind::InvalidInput,
            "ids",
            Some(1),
        ),
        (
            |r| r.lengths = packed::from_u32s(&[3, 0]),
            ErrorKind::InvalidInput,
            "lengths",
            Some(1),
        ),
        (
            |r| r.lengths = packed::from_u32s(&[2, u32::MAX]),
            ErrorKind::InvalidInput,
            "lengths",
            Some(1),
        ),
        (
            |r| {
                *r = v1::RunRequest {
                    lengths: Default::default(),
                    ids: Default::default(),
                    ..r.clone()
                }
            },
            ErrorKind::InvalidInput,
            "lengths",
            None,
        ),
        (
            |r| r.pair_start = packed::from_u32s(&[1, 2]),
            ErrorKind::InvalidInput,
            "pair_start",
            Some(1),
        ),
        (
            |r| r.segments = packed::from_u32s(&[0, 0, 3, 1, 0, 1]),
            ErrorKind::InvalidInput,
            "segments",
            Some(0),
        ),
        (
            |r| r.segments = packed::from_u32s(&[0, 0, 1]),
            ErrorKind::InvalidInput,
            "segments",
            Some(1),
        ),
        (
            |r| r.outputs[0].dimensions = DIMENSIONS + 1,
            ErrorKind::InvalidInput,
            "dimensions",
            None,
        ),
    ];
    for (at, (spoil, kind, field, index)) in cases.into_iter().enumerate() {
        let mut bad = good();
        spoil(&mut bad);
        let error = refusal(&worker, bad).await;
        assert_eq!(
            (error.kind, error.field.as_deref(), error.index),
            (kind, Some(field), index),
            "{at}: {error}"
        );
    }
    assert_eq!(
        worker
            .client()
            .await
            .run(good())
            .await
            .unwrap()
            .into_inner()
            .outputs
            .len(),
        1
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_step_that_raises_fails_only_the_culprit() {
    let worker = Worker::start(|_| {}, Duration::from_millis(30));
    let client = worker.client().await;
    let ask = |ids: Vec<u32>| {
        let mut client = client.clone();
        tokio::spawn(async move { client.run(request(&[&[9], &ids])).await })
    };
    let calls: Vec<_> = (1..=4)
        .map(|n| ask(vec![if n == 3 { POISON } else { n }]))
        .collect();
    for (n, call) in (1..=4_u32).zip(calls) {
        let outcome = call.await.unwrap();
        if n == 3 {
            let error = Error::from(&outcome.unwrap_err());
            assert_eq!(
                (error.kind, error.index),
                (ErrorKind::EngineFailed, Some(1))
            );
            assert!(!error.message.contains("poison"), "details stay inside");
        } else {
            let answer = outcome.unwrap().into_inner();
            assert_eq!(rows(&answer.outputs[0])[1], row_of(&[n]));
        }
    }
    worker.stop().await;
}

#[tokio::test]
async fn nu_04_a_row_that_is_not_finite_in_float16_says_which_formats_are_wider() {
    for (dtype, says) in [("float16", true), ("bfloat16", false), ("float32", false)] {
        let worker = Worker::start(
            |config| config["model"]["dtype"] = dtype.into(),
            Duration::ZERO,
        );
        let outcome = worker.client().await.run(request(&[&[1], &[NAN]])).await;
        let error = Error::from(&outcome.unwrap_err());
        assert_eq!(
            (error.kind, error.index),
            (ErrorKind::EngineFailed, Some(1))
        );
        assert!(error.message.contains("not finite"), "{}", error.message);
        assert_eq!(
            error.message.contains("--dtype bfloat16 or float32"),
            says,
            "{dtype}: {}",
            error.message
        );
        worker.stop().await;
    }
}

#[tokio::test]
async fn nu_03_a_row_that_is_not_finite_is_an_error_and_its_neighbours_are_unharmed() {
    let worker = Worker::start(|_| {}, Duration::from_millis(30));
    let client = worker.client().await;
    let (mut bad, mut good) = (client.clone(), client);
    let (bad, good) = tokio::join!(
        async move { bad.run(request(&[&[1], &[2], &[NAN]])).await },
        async move { good.run(request(&[&[4]])).await },
    );
    let error = Error::from(&bad.unwrap_err());
    assert_eq!(
        (error.kind, error.index),
        (ErrorKind::EngineFailed, Some(2))
    );
    assert_eq!(
        rows(&good.unwrap().into_inner().outputs[0])[0],
        row_of(&[4])
    );
    worker.stop().await;
}
