//! A drained gateway finishes what it accepted; a stopped one does not.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::{Read as _, Write as _};
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

#[test]
fn a_drain_ends_what_is_open_when_its_time_is_over() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| behaviour.delay = Duration::from_secs(30));
    let ivy = Ivy::with(&[&tulip], |config| config["drain_timeout_s"] = json!(0.3));
    ivy.await_ready();
    let mut caller = TcpStream::connect(ivy.running.address()).unwrap();
    let body = r#"{"input": "a"}"#;
    let head = "POST /v1/embeddings HTTP/1.1\r\nhost: ivy\r\ncontent-type: application/json\r\n";
    write!(caller, "{head}content-length: {}\r\n\r\n{body}", body.len()).unwrap();
    eventually("the call arrived", || tulip.calls().len() == 1);
    ivy.running.drain();
    assert!(ivy.running.wait(LONG));
    assert!(ivy.running.was_cut());
    ivy.running.stop();
    let mut answer = Vec::new();
    let _ = caller.read_to_end(&mut answer);
    assert!(answer.is_empty());
}

#[test]
fn clients_that_have_asked_nothing_hold_no_drain_up() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0";
    let begun = [
        "",
        "POST /embed HT",
        "POST /embed HTTP/1.1\r\nhost: i",
        hello,
    ];
    let clients = begun.map(|bytes| {
        let mut client = TcpStream::connect(ivy.running.address()).unwrap();
        client.write_all(bytes.as_bytes()).unwrap();
        client
    });
    thread::sleep(Duration::from_millis(200));
    ivy.running.drain();
    assert!(ivy.running.wait(LONG)); // a drain may take 20 s
    assert!(!ivy.running.was_cut());
    drop(clients);
}
