//! Requests are split over the replicas, tried once elsewhere, and admitted whole or not at all.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::thread;
use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind};
use serde_json::json;
use support::model::{CLS, DIMENSIONS, SEP, vector};
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually};

fn over_both(first: &Tulip, second: &Tulip) -> Ivy {
    let ivy = Ivy::over(&[first, second]);
    eventually("both up", || {
        [first, second].iter().all(|tulip| {
            let series = format!("flowerbed_replica_up{{replica=\"{}\"}}", tulip.address);
            ivy.metric(&series) == Some(1.0)
        })
    });
    ivy
}

fn with_error(kind: ErrorKind) -> Behaviour {
    Behaviour {
        error: Some(Error::new(kind, "no")),
        ..Behaviour::default()
    }
}

#[test]
fn one_replica_gets_a_request_in_one_call() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    ivy.vectors(&json!({"input": vec!["a ".repeat(100); 200]}));
    assert_eq!(tulip.calls().len(), 1);
}

#[test]
fn two_replicas_share_a_request_whose_rows_come_back_in_order() {
    let (first, second) = (Tulip::start(), Tulip::start());
    let ivy = over_both(&first, &second);
    for tulip in [&first, &second] {
        tulip.change(|behaviour| behaviour.delay = Duration::from_millis(20));
    }
    let letters: Vec<String> = (0..200)
        .map(|i| {
            char::from(b'a' + (i % 26) as u8)
                .to_string()
                .repeat(1 + i % 50)
        })
        .collect();
    let rows = ivy.vectors(&json!({"input": letters}));
    let tokens = |text: &String| {
        let letter = 4 + 2 * u32::from(text.as_bytes()[0] - b'a');
        let mut ids = vec![CLS, letter];
        ids.extend(vec![letter + 1; text.len() - 1]);
        ids.push(SEP);
        ids
    };
    let expected: Vec<_> = letters
        .iter()
        .map(|text| vector(&tokens(text), DIMENSIONS))
        .collect();
    assert_eq!(rows, expected);
    assert!(!first.calls().is_empty() && !second.calls().is_empty());
}

#[test]
fn a_chunk_that_one_replica_cannot_run_is_tried_once_elsewhere() {
    for kind in [
        ErrorKind::Overloaded,
        ErrorKind::Unavailable,
        ErrorKind::WrongSpace,
    ] {
        let first = Tulip::start_at("127.0.0.1:0", with_error(kind));
        let second = Tulip::start();
        let ivy = over_both(&first, &second);
        for _ in 0..10 {
            assert_eq!(ivy.embed(&json!({"input": "a"})).status, 200, "{kind:?}");
        }
    }
}

#[test]
fn where_no_other_replica_lives_the_error_is_answered_with_retry_after() {
    for (kind, status) in [
        (ErrorKind::Overloaded, 429),
        (ErrorKind::Unavailable, 503),
        (ErrorKind::WrongSpace, 503),
    ] {
        let tulip = Tulip::start_at("127.0.0.1:0", with_error(kind));
        let ivy = Ivy::over(&[&tulip]);
        let answer = ivy.embed(&json!({"input": "a"}));
        assert_eq!(answer.status, status);
        assert!(
            answer
                .header("retry-after")
                .unwrap()
                .parse::<u64>()
                .unwrap()
                >= 1
        );
        assert_eq!(tulip.calls().len(), 1);
    }
}

#[test]
fn an_error_of_the_engine_is_not_tried_again() {
    let first = Tulip::start_at("127.0.0.1:0", with_error(ErrorKind::EngineFailed));
    let second = Tulip::start_at("127.0.0.1:0", with_error(ErrorKind::EngineFailed));
    let ivy = over_both(&first, &second);
    assert_eq!(ivy.embed(&json!({"input": "a"})).status, 500);
    assert_eq!(first.calls().len() + second.calls().len(), 1);
}

#[test]
fn a_large_request_is_not_put_into_the_queues_of_its_replicas_all_at_once() {
    let slow = || Behaviour {
        delay: Duration::from_millis(500),
        ..Behaviour::default()
    };
    let first = Tulip::start_at("127.0.0.1:0", slow());
    let second = Tulip::start_at("127.0.0.1:0", slow());
    let ivy = over_both(&first, &second);
    let num_calls = || first.calls().len() + second.calls().len();
    thread::scope(|scope| {
        let request = scope.spawn(|| ivy.vectors(&json!({"input": vec!["a ".repeat(100); 400]})));
        eventually("the replicas are busy", || num_calls() >= 20);
        assert!(num_calls() <= 24, "{} chunks at once", num_calls());
        assert_eq!(request.join().unwrap().len(), 400);
    });
    assert!(num_calls() > 60);
}

#[test]
fn what_may_have_hurt_one_replica_is_not_given_to_another() {
    let hurt = || {
        let mut behaviour = with_error(ErrorKind::Unavailable);
        behaviour.error = behaviour.error.map(|error| error.at_index(0));
        behaviour
    };
    let first = Tulip::start_at("127.0.0.1:0", hurt());
    let second = Tulip::start_at("127.0.0.1:0", hurt());
    let ivy = over_both(&first, &second);
    let answer = ivy.embed(&json!({"input": "a"}));
    assert_eq!(answer.status, 503);
    assert!(answer.header("retry-after").is_some());
    assert_eq!(first.calls().len() + second.calls().len(), 1);
}

#[test]
fn chunks_of_one_request_never_mix_spaces() {
    let mut other = Behaviour::default();
    other.info.space = "space-b".to_owned();
    let first = Tulip::start();
    let second = Tulip::start_at("127.0.0.1:0", other);
    let ivy = over_both(&first, &second);
    for _ in 0..5 {
        let answer = ivy.embed(&json!({"input": vec!["a ".repeat(100); 50]}));
        assert_eq!(answer.header("x-flowerbed-space"), Some("space-a"));
    }
    assert!(second.calls().is_empty());
    drop(first);
    eventually("the other space takes over", || {
        let answer = ivy.embed(&json!({"input": "a"}));
        answer.header("x-flowerbed-space") == Some("space-b")
    });
}

#[test]
fn a_request_over_the_queue_is_refused_at_once_and_an_idle_server_admits_anything() {
    let mut small = Behaviour::default();
    small.info.queue_limit = 200;
    small.delay = Duration::from_secs(1);
    let tulip = Tulip::start_at("127.0.0.1:0", small);
    let ivy = Ivy::over(&[&tulip]);
    let large = json!({"input": vec!["a ".repeat(100); 20]});
    thread::scope(|scope| {
        let first = scope.spawn(|| ivy.embed(&large).status);
        eventually("the first is running", || tulip.calls().len() == 1);
        let second = ivy.embed(&large);
        assert_eq!(
            (second.status, second.error()["code"].clone()),
            (429, json!("overloaded"))
        );
        assert!(second.header("retry-after").is_some());
        assert_eq!(first.join().unwrap(), 200);
    });
    assert_eq!(tulip.calls().len(), 1);
    assert_eq!(
        ivy.metric("flowerbed_shed_total{reason=\"overloaded\"}"),
        Some(1.0)
    );
}

#[test]
fn the_busier_of_two_replicas_is_left_alone() {
    let (slow, quick) = (Tulip::start(), Tulip::start());
    let ivy = over_both(&slow, &quick);
    slow.change(|behaviour| behaviour.delay = Duration::from_secs(2));
    thread::scope(|scope| {
        let mut waiting = Vec::new();
        while slow.calls().is_empty() {
            waiting.push(scope.spawn(|| ivy.embed(&json!({"input": "a"})).status));
            thread::sleep(Duration::from_millis(20));
        }
        let before = slow.calls().len();
        for _ in 0..20 {
            assert_eq!(ivy.embed(&json!({"input": "b"})).status, 200);
        }
        assert_eq!(slow.calls().len(), before);
        assert!(
            waiting
                .into_iter()
                .all(|request| request.join().unwrap() == 200)
        );
    });
}
