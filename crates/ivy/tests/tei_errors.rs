//! What the routes of text-embeddings-inference refuse, in its envelope and with its codes.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::thread;
use std::time::Duration;

use flowerbed_protocol::limits;
use serde_json::{Value, json};
use support::tulip::Tulip;
use support::{Ivy, eventually};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Sends a raw body; gives the status, `error_type` and message of its refusal.
fn refused(ivy: &Ivy, path: &str, body: &str) -> (u16, String, String) {
    let answer = ivy.client.send("POST", path, &JSON, body.as_bytes());
    let (message, kind) = answer.tei_error();
    (answer.status, kind, message)
}

#[test]
fn in_08_nothing_to_work_on_is_a_400_and_what_is_missing_a_422() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (path, body, status, kind, word) in [
        ("/embed", r#"{"inputs": []}"#, 400, "Empty", "inputs"),
        ("/embed", r#"{"inputs": [[]]}"#, 400, "Empty", "inputs[0]"),
        ("/embed_all", r#"{"inputs": []}"#, 400, "Empty", "inputs"),
        ("/", r#"{"inputs": []}"#, 400, "Empty", "inputs"),
        ("/tokenize", r#"{"inputs": []}"#, 400, "Empty", "inputs"),
        ("/decode", r#"{"ids": []}"#, 400, "Empty", "ids"),
        ("/decode", r#"{"ids": [[4], []]}"#, 400, "Empty", "ids[1]"),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a", "sentences": []}}"#,
            400,
            "Empty",
            "inputs.sentences",
        ),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a"}}"#,
            422,
            "Validation",
            "inputs.sentences is missing",
        ),
        (
            "/similarity",
            r#"{"inputs": {"sentences": ["a"]}}"#,
            422,
            "Validation",
            "inputs.source_sentence is missing",
        ),
        (
            "/similarity",
            r#"{"inputs": ["a"]}"#,
            422,
            "Validation",
            "source_sentence",
        ),
        ("/embed", "{}", 422, "Validation", "inputs is missing"),
        (
            "/embed",
            r#"{"inputs": null}"#,
            422,
            "Validation",
            "inputs must be",
        ),
        ("/embed", r#"{"input": "a"}"#, 422, "Validation", "input"),
        ("/embed", "[]", 422, "Validation", "JSON object"),
        ("/embed", "nonsense", 422, "Validation", "not valid JSON"),
        ("/embed", "", 422, "Validation", "not valid JSON"),
        ("/decode", "{}", 422, "Validation", "ids is missing"),
    ] {
        let (found, found_kind, message) = refused(&ivy, path, body);
        assert_eq!(
            (found, found_kind.as_str()),
            (status, kind),
            "{path} {body}"
        );
        assert!(message.contains(word), "{path} {body}: {message}");
    }
    assert!(tulip.calls().is_empty());
}

#[test]
fn in_10_the_bad_item_is_named_on_every_route() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for path in ["/embed", "/embed_all", "/"] {
        for item in ["null", "3", "true", r#"{"text": "b"}"#, r#"["b"]"#] {
            let body = format!(r#"{{"inputs": ["a", {item}]}}"#);
            let (status, kind, message) = refused(&ivy, path, &body);
            assert_eq!((status, kind.as_str()), (422, "Validation"));
            assert!(message.starts_with("inputs[1] "), "{message}");
        }
    }
    for (path, body, word) in [
        (
            "/tokenize",
            r#"{"inputs": ["a", [4]]}"#,
            "inputs[1] must be a string",
        ),
        (
            "/tokenize",
            r#"{"inputs": [4]}"#,
            "inputs[0] must be a string",
        ),
        ("/tokenize", r#"{"inputs": {"a": 1}}"#, "inputs must be"),
        ("/decode", r#"{"ids": "a"}"#, "ids must be"),
        ("/decode", r#"{"ids": ["a"]}"#, "ids[0] must be a token id"),
        (
            "/decode",
            r#"{"ids": [[4], [4, -1]]}"#,
            "ids[1] is no token array: item 1",
        ),
        (
            "/decode",
            r#"{"ids": [4, 99999]}"#,
            "ids[1] must be a token of this model, not 99999",
        ),
        (
            "/decode",
            r#"{"ids": [[4], [4, 99999]]}"#,
            "ids[1] is no token array: item 1 must be a token of this model, not 99999",
        ),
        (
            "/embed",
            r#"{"inputs": [4, 99999]}"#,
            "inputs[1] must be below 100, not 99999",
        ),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": 1, "sentences": ["a"]}}"#,
            "inputs.source_sentence must be",
        ),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a", "sentences": ["a", null]}}"#,
            "inputs.sentences[1] must be",
        ),
        (
            "/similarity",
            r#"{"inputs": {"source_sentence": "a", "sentences": ["a"], "more": 1}}"#,
            "unknown field \"more\" in inputs",
        ),
    ] {
        let (status, _, message) = refused(&ivy, path, body);
        assert_eq!(status, 422, "{path} {body}");
        assert!(message.contains(word), "{path} {body}: {message}");
    }
}

#[test]
fn fields_belong_to_their_routes() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (path, field) in [
        ("/embed", r#""parameters": {}"#),
        ("/embed", r#""encoding_format": "base64""#),
        ("/embed", r#""encoding_format": "hex""#),
        ("/embed", r#""normalize": "yes""#),
        ("/embed", r#""truncation_direction": "up""#),
        ("/embed", r#""dimensions": 9"#),
        ("/embed", r#""prompt_name": "qery""#),
        ("/embed_all", r#""normalize": true"#),
        ("/embed_all", r#""dimensions": 2"#),
        ("/tokenize", r#""truncate": true"#),
        ("/tokenize", r#""prompt_name": "qery""#),
        ("/tokenize", r#""add_special_tokens": 1"#),
        ("/", r#""parameters": 3"#),
        ("/", r#""truncate": true, "parameters": {"truncate": true}"#),
        ("/", r#""parameters": {"parameters": {}}"#),
    ] {
        let (status, kind, message) =
            refused(&ivy, path, &format!(r#"{{"inputs": "a", {field}}}"#));
        assert_eq!(
            (status, kind.as_str()),
            (422, "Validation"),
            "{path} {field}"
        );
        let name = field.split('"').nth(1).unwrap();
        assert!(message.contains(name), "{path} {field}: {message}");
    }
    let all = json!({
        "inputs": "a", "truncate": true, "truncation_direction": "Left", "prompt_name": null,
        "normalize": null, "dimensions": 4, "encoding_format": "float"
    });
    assert_eq!(ivy.client.post("/embed", &all).status, 200);
    let nested = json!({"inputs": "a", "parameters": {"normalize": false, "truncate": false}});
    assert_eq!(ivy.client.post("/", &nested).status, 200);
}

#[test]
fn pa_08_limits_are_named_with_the_actual_value_on_each_route() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let limit = limits::MAX_INPUTS;
    let texts = |num_texts: usize| json!(vec!["a"; num_texts]);
    let compared = |num_sentences: usize| json!({"inputs": {"source_sentence": "a", "sentences": texts(num_sentences)}});
    let bodies: [(&str, Value, Value); 5] = [
        (
            "/embed",
            json!({"inputs": texts(limit)}),
            json!({"inputs": texts(limit + 1)}),
        ),
        (
            "/embed_all",
            json!({"inputs": texts(limit)}),
            json!({"inputs": texts(limit + 1)}),
        ),
        (
            "/tokenize",
            json!({"inputs": texts(limit)}),
            json!({"inputs": texts(limit + 1)}),
        ),
        (
            "/decode",
            json!({"ids": vec![[4]; limit]}),
            json!({"ids": vec![[4]; limit + 1]}),
        ),
        ("/similarity", compared(limit - 1), compared(limit)),
    ];
    for (path, at_the_limit, above) in bodies {
        assert_eq!(ivy.client.post(path, &at_the_limit).status, 200, "{path}");
        let (status, kind, message) = refused(&ivy, path, &above.to_string());
        assert_eq!((status, kind.as_str()), (413, "Validation"), "{path}");
        assert!(
            message.contains("2049") && message.contains("2048"),
            "{message}"
        );
    }
    let body = vec![b' '; limits::MAX_BODY_BYTES + 1];
    for path in [
        "/embed",
        "/embed_all",
        "/similarity",
        "/tokenize",
        "/decode",
        "/",
    ] {
        let answer = ivy.client.send("POST", path, &JSON, &body);
        assert_eq!(answer.status, 413, "{path}");
        let (message, kind) = answer.tei_error();
        assert_eq!(kind, "Validation");
        assert!(
            message.contains("33554433") && message.contains("33554432"),
            "{message}"
        );
    }
}

#[test]
fn answers_that_would_be_too_large_are_refused_before_they_are_made() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| behaviour.info.token_dimensions = 65_536);
    let ivy = Ivy::over(&[&tulip]);
    let text = "a ".repeat(100);
    let fits = json!({"inputs": vec![&text; 2]});
    assert_eq!(ivy.client.post("/embed_all", &fits).status, 200);
    let (status, kind, message) = refused(
        &ivy,
        "/embed_all",
        &json!({"inputs": vec![&text; 3]}).to_string(),
    );
    assert_eq!((status, kind.as_str()), (413, "Validation"));
    assert!(
        message.contains("306 tokens, the limit is 240"),
        "{message}"
    );
    let texts = vec!["a ".repeat(200_000); 6];
    let (status, _, message) = refused(&ivy, "/tokenize", &json!({"inputs": texts}).to_string());
    assert_eq!(status, 413);
    assert!(message.contains("1048576"), "{message}");
    let ids = vec![vec![4; 200_000]; 6];
    let (status, _, message) = refused(&ivy, "/decode", &json!({"ids": ids}).to_string());
    assert_eq!(status, 413);
    assert!(message.contains("1200000"), "{message}");
}

#[test]
fn fallbacks_answer_in_the_dialect_of_their_route() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for path in [
        "/embed",
        "/embed_all",
        "/similarity",
        "/tokenize",
        "/decode",
        "/rerank",
    ] {
        let answer = ivy.client.get(path);
        assert_eq!(
            (answer.status, answer.header("allow")),
            (405, Some("POST")),
            "{path}"
        );
        assert_eq!(answer.tei_error().1, "Validation");
    }
    let wrong = ivy.client.send("PUT", "/", &JSON, &vec![b' '; 3_000_000]);
    assert_eq!(wrong.status, 405);
    wrong.tei_error();
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let answer = ivy.client.send("POST", "/embed", &form, b"inputs=a");
    assert_eq!(answer.status, 415);
    answer.tei_error();
    let zipped = [JSON[0], ("content-encoding", "gzip")];
    let answer = ivy.client.send("POST", "/embed", &zipped, b"");
    assert_eq!(answer.status, 415);
    answer.tei_error();
    // OpenAI's routes, and those that are none, keep OpenAI's envelope.
    ivy.client.get("/v1/embeddings").error();
    ivy.client.get("/embeds").error();
    let lane = ivy.client.post_with(
        "/embed",
        &[("x-flowerbed-lane", "fast")],
        &json!({"inputs": "a"}),
    );
    assert_eq!(
        (lane.status, lane.tei_error().1.as_str()),
        (422, "Validation")
    );
}

#[test]
fn op_09_overload_and_time_are_told_at_once_with_a_time_to_come_back() {
    let tulip = Tulip::start();
    tulip.change(|behaviour| {
        behaviour.info.queue_limit = 1_000;
        behaviour.delay = Duration::from_millis(500);
    });
    let ivy = Ivy::over(&[&tulip]);
    let body = json!({"inputs": vec!["b ".repeat(100); 8]});
    thread::scope(|scope| {
        let open = scope.spawn(|| ivy.client.post("/embed", &body).status);
        eventually("the call arrived", || tulip.calls().len() == 1);
        for path in ["/embed", "/embed_all", "/"] {
            let answer = ivy.client.post(path, &body);
            assert_eq!(
                (answer.status, answer.tei_error().1.as_str()),
                (429, "Overloaded")
            );
            let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!(seconds >= 1);
        }
        assert_eq!(open.join().unwrap(), 200);
    });
    let short = [("x-flowerbed-timeout-ms", "50")];
    let answer = ivy
        .client
        .post_with("/embed", &short, &json!({"inputs": "a"}));
    assert_eq!(
        (answer.status, answer.tei_error().1.as_str()),
        (504, "Overloaded")
    );
    assert_eq!(
        ivy.metric("flowerbed_shed_total{reason=\"overloaded\"}"),
        Some(3.0)
    );
}
