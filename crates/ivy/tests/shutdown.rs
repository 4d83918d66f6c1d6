//! A drained gateway finishes what it accepted; a stopped one does not.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use serde_json::json;
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually};

const LONG: Duration = Duration::from_secs(10);

#[test]
fn draining_answers_open_requests_takes_no_new_ones_and_ends() {
    let delay = Duration::from_millis(500);
    let tulip = Tulip::start_at(
        "127.0.0.1:0",
        Behaviour {
            delay,
            ..Behaviour::default()
        },
    );
    let ivy = Ivy::over(&[&tulip]);
    thread::scope(|scope| {
        let open = scope.spawn(|| ivy.embed(&json!({"input": "a"})).status);
        eventually("the call arrived", || tulip.calls().len() == 1);
        ivy.running.drain();
        eventually("no new connections", || {
            TcpStream::connect(ivy.running.address()).is_err()
        });
        assert!(!ivy.running.wait(Duration::from_millis(1)));
        assert_eq!(open.join().unwrap(), 200);
    });
    assert!(ivy.running.wait(LONG));
}

#[test]
fn stopping_ends_at_once() {
    let delay = Duration::from_secs(30);
    let tulip = Tulip::start_at(
        "127.0.0.1:0",
        Behaviour {
            delay,
            ..Behaviour::default()
        },
    );
    let ivy = Ivy::over(&[&tulip]);
    assert!(!ivy.running.wait(Duration::from_millis(1)));
    ivy.running.stop();
    assert!(ivy.running.wait(LONG));
    ivy.running.stop();
}
