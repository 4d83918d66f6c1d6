//! Every request has a deadline: the caller's, at most the gateway's.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write;
use std::time::{Duration, SystemTime};

use serde_json::json;
use support::http::Answer;
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually};

fn slow() -> Tulip {
    let delay = Duration::from_secs(30);
    Tulip::start_at(
        "127.0.0.1:0",
        Behaviour {
            delay,
            ..Behaviour::default()
        },
    )
}

fn ask(ivy: &Ivy, timeout_ms: &str) -> Answer {
    let headers = [("x-flowerbed-timeout-ms", timeout_ms)];
    ivy.client
        .post_with("/v1/embeddings", &headers, &json!({"input": "a"}))
}

#[test]
fn a_request_whose_time_runs_out_is_answered_504_and_its_call_dropped() {
    let tulip = slow();
    let ivy = Ivy::over(&[&tulip]);
    let started = SystemTime::now();
    let answer = ask(&ivy, "200");
    assert_eq!(
        (answer.status, answer.error()["code"].clone()),
        (504, json!("deadline_exceeded"))
    );
    assert!(started.elapsed().unwrap() < Duration::from_secs(2));
    let timeout = tulip.calls()[0].header("grpc-timeout").unwrap().to_owned();
    assert!(
        timeout.ends_with('u') || timeout.ends_with('n'),
        "{timeout}"
    );
    eventually("the worker's handler is dropped", || {
        tulip.num_dropped() == 1
    });
    assert_eq!(ivy.client.get("/ready").status, 200);
    assert_eq!(
        ivy.metric("flowerbed_shed_total{reason=\"deadline_exceeded\"}"),
        Some(1.0)
    );
}

#[test]
fn the_gateways_own_limit_caps_the_callers() {
    let tulip = slow();
    let ivy = Ivy::with(&[&tulip], |config| config["request_timeout_s"] = json!(0.3));
    ivy.await_ready();
    let started = SystemTime::now();
    assert_eq!(ask(&ivy, "60000").status, 504);
    assert_eq!(ivy.embed(&json!({"input": "a"})).status, 504);
    assert!(started.elapsed().unwrap() < Duration::from_secs(3));
}

#[test]
fn a_timeout_that_is_no_positive_integer_is_refused() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for bad in ["0", "-1", "1.5", "soon", ""] {
        let answer = ask(&ivy, bad);
        assert_eq!(answer.status, 400, "{bad}");
        assert_eq!(answer.error()["param"], "x-flowerbed-timeout-ms");
    }
}

#[test]
fn a_body_that_never_ends_has_a_deadline_too() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let headers = [
        ("content-type", "application/json"),
        ("x-flowerbed-timeout-ms", "200"),
    ];
    let mut stream = ivy.client.open("POST", "/v1/embeddings", &headers, 100);
    stream.write_all(b"{").unwrap();
    assert_eq!(Answer::read(&mut stream).status, 504);
}
