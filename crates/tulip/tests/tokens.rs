//! The tokens head: one row a token, whose rows they are, and what is refused.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, limits, packed, v1};
use flowerbed_tulip::WorkerConfig;
use flowerbed_tulip::chunk::Chunk;
use support::{NAN, TOKEN_DIMENSIONS, Worker, config, request, row_of, rows, token_row};

fn worker(step_time: Duration) -> Worker {
    let with_head = |config: &mut serde_json::Value| {
        config["model"]["heads"] = serde_json::json!(["embed", "tokens"]);
    };
    Worker::start(with_head, step_time)
}

fn ask(sequences: &[&[u32]]) -> v1::RunRequest {
    v1::RunRequest {
        head: v1::Head::Tokens.into(),
        ..request(sequences)
    }
}

/// Checks a request as a worker would whose model normalises its pooled vectors of 4 or 2 values.
fn check(request: &v1::RunRequest) -> Result<Chunk, Error> {
    let mut config = config("unix:/none");
    config["model"]["heads"] = serde_json::json!(["embed", "tokens"]);
    config["model"]["normalize"] = true.into();
    config["model"]["allowed_dimensions"] = serde_json::json!([2, 4]);
    let config: WorkerConfig = serde_json::from_value(config).unwrap();
    Chunk::check(request, &config.model)
}

fn offsets(output: &v1::Output) -> Vec<u32> {
    packed::to_u32s(&output.row_offsets).unwrap()
}

#[tokio::test]
async fn each_token_has_a_row_in_order_over_many_steps() {
    let worker = worker(Duration::ZERO);
    let sequences: Vec<Vec<u32>> = (1..=30).map(|n| (n..2 * n).collect()).collect();
    let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let mut client = worker.client().await;
    let answer = client.run(ask(&slices)).await.unwrap().into_inner();
    let output = &answer.outputs[0];
    let expected: Vec<_> = sequences
        .concat()
        .iter()
        .map(|id| token_row(&[*id]).to_vec())
        .collect();
    assert_eq!(rows(output), expected);
    assert_eq!(output.head(), v1::Head::Tokens);
    assert_eq!(output.shape, [465, u64::from(TOKEN_DIMENSIONS)]);
    let ends = (0..=30).map(|n| n * (n + 1) / 2);
    assert_eq!(offsets(output), ends.collect::<Vec<u32>>());
    assert!(
        answer.stats.unwrap().num_steps > 10,
        "a budget of 32 tokens"
    );
    worker.stop().await;
}

#[tokio::test]
async fn segments_choose_tokens_and_formats_mix() {
    let worker = worker(Duration::ZERO);
    let mut ask = ask(&[&[1, 2, 3, 4], &[5, 6]]);
    ask.segments = packed::from_u32s(&[0, 1, 3, 0, 3, 4, 1, 0, 1]);
    ask.outputs.push(v1::OutputSpec {
        dimensions: 1,
        ..ask.outputs[0]
    });
    let mut client = worker.client().await;
    let answer = client.run(ask).await.unwrap().into_inner();
    let expected = [2, 3, 4, 5].map(|id| token_row(&[id]).to_vec());
    assert_eq!(rows(&answer.outputs[0]), expected);
    assert_eq!(rows(&answer.outputs[1]), [[2.0], [3.0], [4.0], [5.0]]);
    for output in &answer.outputs {
        assert_eq!(offsets(output), [0, 3, 4]);
    }
    worker.stop().await;
}

#[tokio::test]
async fn vectors_and_tokens_share_no_step() {
    let worker = worker(Duration::from_millis(30));
    let client = worker.client().await;
    let calls = (1..=12_u32).map(|n| {
        let mut client = client.clone();
        tokio::spawn(async move {
            let ids = [n, n + 1];
            let is_tokens = n % 2 == 0;
            let message = if is_tokens {
                ask(&[&ids])
            } else {
                request(&[&ids])
            };
            let answer = client.run(message).await.unwrap().into_inner();
            let expected = if is_tokens {
                vec![token_row(&[n]).to_vec(), token_row(&[n + 1]).to_vec()]
            } else {
                assert!(answer.outputs[0].row_offsets.is_empty());
                vec![row_of(&ids).to_vec()]
            };
            assert_eq!(rows(&answer.outputs[0]), expected);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    worker.stop().await;
}

#[tokio::test]
async fn nu_03_a_bad_token_is_told_by_its_sequence() {
    let worker = worker(Duration::ZERO);
    let mut client = worker.client().await;
    let bad = ask(&[&[1, 2, 3], &[4, NAN, 5], &[6]]);
    let error = Error::from(&client.run(bad).await.unwrap_err());
    assert_eq!(
        (error.kind, error.index),
        (ErrorKind::EngineFailed, Some(1))
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_model_without_the_head_refuses() {
    let worker = Worker::start(|_| {}, Duration::ZERO);
    let mut client = worker.client().await;
    let error = Error::from(&client.run(ask(&[&[1]])).await.unwrap_err());
    assert_eq!(
        (error.kind, error.field.as_deref()),
        (ErrorKind::InvalidInput, Some("head"))
    );
    worker.stop().await;
}

#[test]
fn a_tokens_row_is_cut_by_its_own_size_and_scaled_only_if_asked() {
    let mut ask = ask(&[&[1, 2]]);
    let format = check(&ask).unwrap().outputs[0];
    assert_eq!((format.dimensions, format.normalize), (6, false));

    ask.outputs[0].dimensions = 5; // not among the sizes of pooled vectors, and above them
    ask.outputs[0].normalize = v1::Normalize::On.into();
    let format = check(&ask).unwrap().outputs[0];
    assert_eq!((format.dimensions, format.normalize), (5, true));

    ask.outputs[0].dimensions = 7;
    let error = check(&ask).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("dimensions"));
    assert!(error.message.contains("1 to 6"), "{error}");

    let pooled = v1::RunRequest {
        head: v1::Head::Embed.into(),
        ..ask
    };
    assert_eq!(
        check(&pooled).unwrap_err().field.as_deref(),
        Some("dimensions")
    );
}

#[test]
fn an_answer_that_fits_no_message_is_refused_before_it_takes_memory() {
    let sequence: &[u32] = &[1; 64];
    let chunk = check(&ask(&vec![sequence; limits::MAX_ROWS / 64])).unwrap();
    assert_eq!(chunk.segments.len(), limits::MAX_ROWS);
    assert_eq!(chunk.result_bytes().sum::<u64>(), 65_536 * 4 * 6);

    let error = check(&ask(&vec![sequence; limits::MAX_ROWS / 64 + 1])).unwrap_err();
    assert_eq!(
        (error.kind, error.field.as_deref()),
        (ErrorKind::TooLarge, Some("segments"))
    );
    assert!(error.message.contains("send fewer sequences"), "{error}");
}

#[test]
fn many_formats_count_towards_the_size_of_an_answer() {
    let mut config = config("unix:/none");
    config["model"]["heads"] = serde_json::json!(["tokens"]);
    config["model"]["token_dimensions"] = 8_192.into();
    let config: WorkerConfig = serde_json::from_value(config).unwrap();
    let long = [1; 64];
    let mut wide = ask(&vec![&long[..]; 29]); // 1,856 rows of 32 KiB are 58 MiB
    assert!(Chunk::check(&wide, &config.model).is_ok());
    wide.outputs.push(wide.outputs[0]);
    let error = Chunk::check(&wide, &config.model).unwrap_err();
    assert_eq!(error.kind, ErrorKind::TooLarge);
    assert!(error.message.contains("may ask for 960"), "{error}");
}
