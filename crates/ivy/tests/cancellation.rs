//! Work ends with the client that asked for it.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::io::Write;
use std::time::Duration;

use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually};

#[test]
fn a_client_that_hangs_up_drops_its_calls_and_frees_the_queue() {
    let mut behaviour = Behaviour {
        delay: Duration::from_secs(30),
        ..Behaviour::default()
    };
    behaviour.info.queue_limit = 5;
    let tulip = Tulip::start_at("127.0.0.1:0", behaviour);
    let ivy = Ivy::over(&[&tulip]);
    let body = br#"{"input": "a b c"}"#;
    let headers = [("content-type", "application/json")];
    let mut stream = ivy
        .client
        .open("POST", "/v1/embeddings", &headers, body.len());
    stream.write_all(body).unwrap();
    eventually("the call arrived", || tulip.calls().len() == 1);
    drop(stream);
    eventually("the call is dropped", || tulip.num_dropped() == 1);
    eventually("it is counted", || {
        let series = "flowerbed_requests_total{model=\"flowerbed/tiny-bert\",\
            route=\"/v1/embeddings\",lane=\"online\",code=\"499\"}";
        ivy.metric(series) == Some(1.0)
    });
    tulip.change(|behaviour| behaviour.delay = Duration::ZERO);
    assert_eq!(
        ivy.embed(&serde_json::json!({"input": "a b c"})).status,
        200
    );
}
