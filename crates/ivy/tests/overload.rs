//! A full queue is answered at once, with the time after which it has room.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::thread;
use std::time::Duration;

use flowerbed_protocol::v1::Load;
use serde_json::{Value, json};
use support::tulip::Tulip;
use support::{Ivy, eventually};

/// 8 sequences of 102 tokens, each of cost 105.
fn body() -> Value {
    json!({"input": vec!["b ".repeat(100); 8]})
}

/// `Retry-After` of a request that comes while another one is being run.
fn retry_after(ivy: &Ivy, tulip: &Tulip) -> u64 {
    let num_calls = tulip.calls().len();
    tulip.change(|behaviour| behaviour.delay = Duration::from_millis(500));
    let answer = thread::scope(|scope| {
        let open = scope.spawn(|| ivy.embed(&body()).status);
        eventually("the call arrived", || tulip.calls().len() == num_calls + 1);
        let answer = ivy.embed(&body());
        assert_eq!(open.join().unwrap(), 200);
        answer
    });
    assert_eq!(answer.status, 429);
    answer.header("retry-after").unwrap().parse().unwrap()
}

#[test]
fn a_retry_is_advised_when_the_excess_has_run_at_the_measured_rate() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| behaviour.info.queue_limit = 1_000);
    let ivy = Ivy::over(&[&tulip]);
    // Nothing was measured yet: a queue of 1,000 was sized for 10 s, so the excess of 680 takes 7 s.
    assert_eq!(retry_after(&ivy, &tulip), 7);
    tulip.change(|behaviour| {
        behaviour.load = Some(Load {
            queued_cost: vec![0, 0, 0],
            cost_per_second: 400.0,
            queue_limit: 0,
        });
    });
    ivy.vectors(&json!({"input": "a"}));
    assert_eq!(retry_after(&ivy, &tulip), 2);
    // A report is stale after a second; its rate still is the best guess.
    thread::sleep(Duration::from_millis(1_100));
    assert_eq!(retry_after(&ivy, &tulip), 2);
}

#[test]
fn work_of_other_gateways_counts_too() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| {
        behaviour.info.queue_limit = 1_000;
        behaviour.load = Some(Load {
            queued_cost: vec![0, 0, 2_000],
            cost_per_second: 400.0,
            queue_limit: 0,
        });
    });
    let ivy = Ivy::over(&[&tulip]);
    ivy.vectors(&json!({"input": "a"}));
    assert_eq!(retry_after(&ivy, &tulip), 7);
}

#[test]
fn op_09_what_cannot_be_taken_is_refused_before_it_is_tokenized() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| {
        behaviour.info.queue_limit = 1_000;
        behaviour.delay = Duration::from_millis(500);
    });
    let ivy = Ivy::over(&[&tulip]);
    let ids = vec![vec![4; 102]; 8];
    thread::scope(|scope| {
        let open = scope.spawn(|| ivy.embed(&body()).status);
        eventually("the call arrived", || tulip.calls().len() == 1);
        for refused in [body(), json!({"input": ids})] {
            assert_eq!(ivy.embed(&refused).status, 429);
        }
        assert_eq!(open.join().unwrap(), 200);
    });
    let tokenized = ivy.metric("flowerbed_tokenize_seconds_count");
    assert_eq!(tokenized, Some(1.0), "only the first one was");
    // What has room is taken: 1 sequence of cost 105 beside 8.
    thread::scope(|scope| {
        let open = scope.spawn(|| ivy.embed(&body()).status);
        eventually("the call arrived", || tulip.calls().len() == 2);
        let one = json!({"input": "b ".repeat(100)});
        assert_eq!(ivy.embed(&one).status, 200);
        assert_eq!(open.join().unwrap(), 200);
    });
}
