//! Deadlines, cancelled calls, full queues, health, tokens, draining.

#![allow(clippy::unwrap_used, reason = "a helper that fails must fail its test")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flowerbed_protocol::v1::inference_client::InferenceClient;
use flowerbed_protocol::{Error, ErrorKind, v1};
use flowerbed_tulip::StepFault;
use hyper_util::rt::TokioExecutor;
use support::{NAN, Worker, client_of, done, health_of, request, row_of, rows, until_serving};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;
use tonic::Request;
use tonic_health::pb::health_check_response::ServingStatus;

const SLOW: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_probe_makes_an_idle_worker_ready() {
    let worker = Worker::start(|_| {}, Duration::ZERO);
    until_serving(&worker).await;
    assert_eq!(
        worker.steps.load(Ordering::SeqCst),
        1,
        "one probe, then the good step is fresh"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_worker_is_known_and_not_serving_before_its_first_probe_is_answered() {
    let worker = Worker::start(|_| {}, SLOW);
    assert_eq!(health_of(&worker).await, ServingStatus::NotServing);
    until_serving(&worker).await;
    worker.stop().await;
}

#[tokio::test]
async fn a_deadline_is_answered_when_it_passes_and_as_such() {
    let listen_on_tcp = |c: &mut serde_json::Value| c["listen"] = "127.0.0.1:0".into();
    let worker = Worker::start(listen_on_tcp, SLOW);
    until_serving(&worker).await;
    // tonic's own channel would arm a timer too; this client leaves the server alone with it.
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http();
    let origin = format!("http://{}", worker.tulip.address())
        .parse()
        .unwrap();
    let mut client = InferenceClient::with_origin(http, origin);
    for timeout_ms in [20, 100] {
        let mut call = Request::new(request(&[&[1]]));
        call.set_timeout(Duration::from_millis(timeout_ms));
        let start = Instant::now();
        let error = Error::from(&client.run(call).await.unwrap_err());
        assert_eq!(error.kind, ErrorKind::DeadlineExceeded);
        assert!(start.elapsed() < SLOW, "{:?}", start.elapsed());
    }
    worker.stop().await;
}

#[tokio::test]
async fn queued_work_of_a_caller_who_hung_up_is_not_run() {
    let worker = Worker::start(|_| {}, SLOW);
    until_serving(&worker).await;
    let client = worker.client().await;
    let call = |ids: &'static [u32]| {
        let mut client = client.clone();
        tokio::spawn(async move { client.run(request(&[ids])).await })
    };
    let first = call(&[1; 32]); // a whole step
    tokio::time::sleep(SLOW / 6).await;
    let before = worker.steps.load(Ordering::SeqCst);
    let gone: Vec<_> = (0..10).map(|_| call(&[2; 32])).collect();
    tokio::time::sleep(SLOW / 6).await;
    for call in gone {
        call.abort();
    }
    let last = call(&[3; 32]);
    first.await.unwrap().unwrap();
    let answer = last.await.unwrap().unwrap().into_inner();
    assert_eq!(rows(&answer.outputs[0])[0], row_of(&[3; 32]));
    assert_eq!(
        worker.steps.load(Ordering::SeqCst),
        before + 1,
        "ten calls cost no step"
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_says_when_to_return() {
    let worker = Worker::start(|c| c["cost_per_second"] = 10.into(), SLOW);
    until_serving(&worker).await;
    let client = worker.client().await;
    let call = || {
        let mut client = client.clone();
        tokio::spawn(async move { client.run(request(&[&[1; 32], &[1; 32]])).await })
    };
    let calls: Vec<_> = (0..8).map(|_| call()).collect();
    let mut refused = 0;
    for call in calls {
        if let Err(status) = call.await.unwrap() {
            let error = Error::from(&status);
            assert_eq!(error.kind, ErrorKind::Overloaded);
            assert!(
                error
                    .retry_after
                    .is_some_and(|after| after >= Duration::from_millis(100))
            );
            refused += 1;
        }
    }
    assert!((1..8).contains(&refused), "{refused}");
    worker.stop().await;
}

#[tokio::test]
async fn draining_finishes_what_is_queued_and_refuses_what_is_new() {
    let worker = Worker::start(|_| {}, SLOW);
    until_serving(&worker).await;
    let mut client = worker.client().await;
    let queued = tokio::spawn({
        let mut client = client.clone();
        async move { client.run(request(&[&[1; 32], &[2; 32]])).await }
    });
    tokio::time::sleep(SLOW / 6).await;
    worker.tulip.drain(Duration::from_secs(30));
    let error = Error::from(&client.run(request(&[&[1]])).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let address = worker.tulip.address().to_owned();
    worker.stop().await;
    assert_eq!(
        queued.await.unwrap().unwrap().into_inner().outputs[0].shape,
        [2, 4]
    );
    assert!(!std::path::Path::new(address.trim_start_matches("unix:")).exists());
}

#[tokio::test]
async fn a_drain_refuses_what_is_left_when_its_time_is_over() {
    let worker = Worker::start(|_| {}, SLOW);
    until_serving(&worker).await;
    let client = worker.client().await;
    let calls: Vec<_> = (0..5)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.run(request(&[&[1; 32]])).await })
        })
        .collect();
    tokio::time::sleep(SLOW / 6).await;
    let started = Instant::now();
    worker.tulip.drain(SLOW);
    let mut kinds = Vec::new();
    for call in calls {
        kinds.push(
            call.await
                .unwrap()
                .map_err(|status| Error::from(&status).kind)
                .err(),
        );
    }
    assert!(
        kinds.contains(&None) && kinds.contains(&Some(ErrorKind::Unavailable)),
        "{kinds:?}"
    );
    assert!(started.elapsed() < 3 * SLOW);
    assert!(worker.tulip.was_cut());
    worker.stop().await;
}

#[tokio::test]
async fn metrics_have_a_listener_of_their_own_and_ask_for_the_token_on_the_other_one() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = free.local_addr().unwrap().to_string();
    drop(free);
    let worker = Worker::start(
        |c| {
            c["listen"] = "127.0.0.1:0".into();
            c["metrics_listen"] = metrics.as_str().into();
            c["token"] = "secret".into();
        },
        Duration::ZERO,
    );
    let text = scrape(&metrics).await;
    assert!(text.contains("content-type: text/plain; version=0.0.4"));
    assert!(text.contains("flowerbed_device_busy_ratio 0"));
    assert!(
        scrape(worker.tulip.address())
            .await
            .starts_with("HTTP/1.1 401")
    );
    worker.stop().await;
}

static GIVEN_UP: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn a_step_that_hangs_fails_its_callers_and_the_process_is_given_up() {
    // Only the step of the request: a probe before it would hang alone.
    let worker = Worker::start_engine(
        |c| c["step_timeout_s"] = 0.2.into(),
        || GIVEN_UP.store(true, Ordering::SeqCst),
        |tulip, batch| {
            if batch.ids.contains(&9) {
                std::thread::sleep(Duration::from_secs(2));
            }
            tulip.failed(batch.id, "no rows".to_owned(), StepFault::Input);
        },
    );
    let start = Instant::now();
    let error = Error::from(
        &worker
            .client()
            .await
            .run(request(&[&[9]]))
            .await
            .unwrap_err(),
    );
    assert_eq!(error.kind, ErrorKind::Unavailable);
    // It may be why: a gateway does not try elsewhere what names an input.
    assert_eq!(error.index, Some(0));
    assert!(start.elapsed() < Duration::from_secs(2));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(GIVEN_UP.load(Ordering::SeqCst));
    worker.stop().await;
}

static NEGLECT_GIVEN_UP: AtomicBool = AtomicBool::new(false);

#[tokio::test]
async fn a_puller_that_does_not_come_back_between_two_steps_is_given_up() {
    let hung = Duration::from_secs(4);
    let worker = Worker::start_engine(
        |c| c["step_timeout_s"] = 0.5.into(),
        || NEGLECT_GIVEN_UP.store(true, Ordering::SeqCst),
        move |tulip, batch| {
            let hangs = batch.ids.contains(&2);
            tulip.launched(batch.id, done(&batch), "eager".to_owned(), 0);
            if hangs {
                std::thread::sleep(hung);
            }
        },
    );
    until_serving(&worker).await;
    let mut client = worker.client().await;
    // Idle for longer than the limit is no fault.
    tokio::time::sleep(Duration::from_secs(1)).await;
    client.run(request(&[&[2]])).await.unwrap();
    let start = Instant::now();
    let error = Error::from(&client.run(request(&[&[3]])).await.unwrap_err());
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(start.elapsed() < hung, "{:?}", start.elapsed());
    assert!(worker.tulip.is_faulted());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(NEGLECT_GIVEN_UP.load(Ordering::SeqCst));
    worker.stop().await;
}

#[tokio::test]
async fn metrics_count_what_ran_and_what_was_shed() {
    let listen_on_tcp = |c: &mut serde_json::Value| c["listen"] = "127.0.0.1:0".into();
    let worker = Worker::start(listen_on_tcp, Duration::from_millis(20));
    until_serving(&worker).await;
    let mut client = worker.client().await;
    client.run(request(&[&[1; 20], &[2; 20]])).await.unwrap();
    client.run(request(&[&[NAN]])).await.unwrap_err();
    let text = scrape(worker.tulip.address()).await;
    for line in [
        "flowerbed_step_tokens_sum{kind=\"real\"} 42",
        "flowerbed_step_tokens_count{kind=\"padding\"} 4",
        "flowerbed_step_seconds_count{mode=\"eager\"} 4",
        "flowerbed_queue_seconds_count{lane=\"online\"} 3",
        "flowerbed_queue_tokens{lane=\"bulk\"} 0",
        "flowerbed_chunks_shed_total{reason=\"engine_failed\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    worker.stop().await;
}

/// A plain HTTP/1.1 scrape, as Prometheus does it.
async fn scrape(address: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let ask = "GET /metrics HTTP/1.1\r\nhost: worker\r\nconnection: close\r\n\r\n";
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_caller_without_the_token_is_refused() {
    let worker = Worker::start(
        |c| {
            c["token"] = "secret".into();
            c["listen"] = "127.0.0.1:0".into();
        },
        Duration::ZERO,
    );
    let mut client = client_of(worker.tulip.address()).await;
    for header in [None, Some("Bearer wrong1"), Some("secret")] {
        let mut call = Request::new(v1::DescribeRequest {});
        if let Some(header) = header {
            call.metadata_mut()
                .insert("authorization", header.parse().unwrap());
        }
        let error = Error::from(&client.describe(call).await.unwrap_err());
        assert_eq!(error.kind, ErrorKind::Unauthorized);
    }
    let mut call = Request::new(v1::DescribeRequest {});
    call.metadata_mut()
        .insert("authorization", "Bearer secret".parse().unwrap());
    assert_eq!(
        client
            .describe(call)
            .await
            .unwrap()
            .into_inner()
            .models
            .len(),
        1
    );
    worker.stop().await;
}

#[tokio::test]
async fn a_living_workers_socket_is_not_taken_over_but_a_dead_ones_is() {
    let worker = Worker::start(|_| {}, Duration::ZERO);
    let address = worker.tulip.address().to_owned();
    let config = serde_json::from_value(support::config(&address)).unwrap();
    let second =
        tokio::task::spawn_blocking(|| flowerbed_tulip::Tulip::start(config, || ()).map(|_| ()));
    assert_eq!(
        second.await.unwrap().unwrap_err().kind(),
        std::io::ErrorKind::AddrInUse
    );
    worker.stop().await;
    let folder = tempfile::tempdir().unwrap();
    let stale = folder.path().join("w.sock");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    let listen = format!("unix:{}", stale.display());
    Worker::start(|c| c["listen"] = listen.into(), Duration::ZERO)
        .stop()
        .await;
}
