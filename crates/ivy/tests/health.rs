//! Ready means that a request sent now can be answered; alive means only alive.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::json;
use std::time::{Duration, SystemTime};
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually};

fn reason(ivy: &Ivy) -> String {
    let answer = ivy.client.get("/ready");
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
    answer.error()["message"].as_str().unwrap().to_owned()
}

#[test]
fn without_a_worker_the_gateway_is_alive_and_not_ready() {
    let address = Tulip::start().die();
    let ivy = Ivy::with(&[], |config| config["workers"] = json!([address]));
    assert_eq!(ivy.client.get("/health").status, 200);
    eventually("the attempt failed", || {
        reason(&ivy).contains("cannot connect")
    });
    let answer = ivy.embed(&json!({"input": "a"}));
    assert_eq!(
        (answer.status, answer.error()["code"].clone()),
        (503, json!("unavailable"))
    );
    assert!(answer.header("retry-after").is_some());
    // What is wrong with the request itself is said all the same.
    assert_eq!(ivy.embed(&json!({"input": []})).status, 400);
    let _late = Tulip::start_at(&address, Behaviour::default());
    ivy.await_ready();
    assert_eq!(ivy.embed(&json!({"input": "a"})).status, 200);
}

type Change = fn(&mut Behaviour);

#[test]
fn a_worker_that_does_not_fit_is_refused_and_ready_says_why() {
    let changes: [(Change, &str); 4] = [
        (|behaviour| behaviour.protocol = 99, "protocol 99"),
        (
            |behaviour| behaviour.info.tokenizer_sha256 = "other".to_owned(),
            "another tokenizer",
        ),
        (
            |behaviour| behaviour.info.text_sha256 = "other".to_owned(),
            "text settings",
        ),
        (
            |behaviour| behaviour.info.id = "other/model".to_owned(),
            "other/model",
        ),
    ];
    for (change, word) in changes {
        let tulip = Tulip::start();
        tulip.change(change);
        let ivy = Ivy::with(&[&tulip], |_| {});
        eventually("refused", || reason(&ivy).contains(word));
    }
}

#[test]
fn a_worker_that_says_it_is_not_serving_is_not_asked() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    tulip.set_serving(false);
    eventually("not ready", || ivy.client.get("/ready").status == 503);
    assert!(reason(&ivy).contains("not serving"));
    assert_eq!(ivy.embed(&json!({"input": "a"})).status, 503);
    tulip.set_serving(true);
    ivy.await_ready();
}

#[test]
fn a_worker_that_dies_is_down_at_once_and_its_successor_is_described_anew() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let address = tulip.die();
    let died = SystemTime::now();
    eventually("down", || ivy.client.get("/ready").status == 503);
    let elapsed = died.elapsed().unwrap();
    assert!(elapsed < Duration::from_millis(250), "{elapsed:?}");
    assert_eq!(ivy.embed(&json!({"input": "a"})).status, 503);
    let mut other = Behaviour::default();
    other.info.space = "space-b".to_owned();
    let _successor = Tulip::start_at(&address, other);
    ivy.await_ready();
    let answer = ivy.embed(&json!({"input": "a"}));
    assert_eq!(answer.header("x-flowerbed-space"), Some("space-b"));
}

#[test]
fn replicas_are_counted_up_and_down() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let series = format!("flowerbed_replica_up{{replica=\"{}\"}}", tulip.address);
    assert_eq!(ivy.metric(&series), Some(1.0));
    drop(tulip);
    eventually("counted down", || ivy.metric(&series) == Some(0.0));
}
