//! Limits are exact, named with the actual value, and their answers can be read.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use flowerbed_protocol::limits;
use serde_json::json;
use support::Ivy;
use support::tulip::Tulip;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[test]
fn pa_08_the_list_limit_is_named_with_the_actual_count() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let limit = limits::MAX_INPUTS;
    for num_inputs in [limit - 1, limit] {
        assert_eq!(
            ivy.vectors(&json!({"input": vec!["a"; num_inputs]})).len(),
            num_inputs
        );
    }
    for body in [
        json!({"input": vec!["a"; limit + 1]}),
        json!({"input": vec![[4]; limit + 1]}),
    ] {
        let answer = ivy.embed(&body);
        assert_eq!(
            (answer.status, answer.error()["param"].clone()),
            (400, json!("input"))
        );
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(
            message.contains("2049") && message.contains("2048"),
            "{message}"
        );
    }
}

#[test]
fn pa_08_the_body_limit_is_named_and_the_answer_can_be_read() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let padded = |num_bytes: usize| {
        let mut body = br#"{"input": "a"}"#.to_vec();
        body.resize(num_bytes, b' ');
        ivy.client.send("POST", "/v1/embeddings", &JSON, &body)
    };
    assert_eq!(padded(limits::MAX_BODY_BYTES).status, 200);
    for num_bytes in [
        limits::MAX_BODY_BYTES + 1,
        limits::MAX_BODY_BYTES + 3_000_000,
    ] {
        let answer = padded(num_bytes);
        assert_eq!(
            (answer.status, answer.error()["code"].clone()),
            (413, json!("too_large"))
        );
        let message = answer.error()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&num_bytes.to_string()), "{message}");
        assert!(
            message.contains(&limits::MAX_BODY_BYTES.to_string()),
            "{message}"
        );
    }
}

#[test]
fn pa_08_other_refusals_also_wait_for_a_large_body() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let body = vec![b' '; 8_000_000];
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for (method, path, headers, status) in [
        ("POST", "/v1/embeddings", &form, 415),
        ("POST", "/v1/rerank", &JSON, 404),
        ("PUT", "/v1/embeddings", &JSON, 405),
    ] {
        let answer = ivy.client.send(method, path, headers, &body);
        assert_eq!(answer.status, status);
        answer.error();
    }
}
