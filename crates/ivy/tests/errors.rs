//! What cannot be answered is refused in OpenAI's envelope, with the field and the caller's index.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use flowerbed_protocol::{Error, ErrorKind};
use serde_json::{Value, json};
use support::Ivy;
use support::tulip::Tulip;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// Sends a raw body; its refusal must be a 400 that names `param`.
fn assert_refused(ivy: &Ivy, body: &[u8], param: &Value) -> String {
    let answer = ivy.client.send("POST", "/v1/embeddings", &JSON, body);
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    assert_eq!(answer.status, 400, "{shown}");
    let error = answer.error();
    assert_eq!(error["param"], *param, "{shown}");
    assert!(["invalid_input", "empty_input"].contains(&error["code"].as_str().unwrap()));
    assert_eq!(error["type"], "invalid_request_error");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn in_08_a_missing_or_empty_input_is_a_400() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for body in [
        "{}",
        r#"{"input": []}"#,
        r#"{"input": null}"#,
        r#"{"input": {}}"#,
        r#"{"model": "tiny"}"#,
    ] {
        assert_refused(&ivy, body.as_bytes(), &json!("input"));
    }
    assert_refused(&ivy, br#"{"input": [[]]}"#, &json!("input[0]"));
    for body in [
        "",
        "null",
        "[]",
        "7",
        "\"text\"",
        "{\"input\": \"a\"} x",
        "{\"input\": \"a\"",
        "nonsense",
    ] {
        assert_refused(&ivy, body.as_bytes(), &Value::Null);
    }
    assert!(tulip.calls().is_empty());
}

#[test]
fn in_10_the_bad_item_is_named_by_the_callers_index() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (input, param) in [
        (r#"["a", null]"#, "input[1]"),
        (r#"["a", 3]"#, "input[1]"),
        (r#"["a", true]"#, "input[1]"),
        (r#"["a", {"text": "b"}]"#, "input[1]"),
        (r#"["a", ["b"]]"#, "input[1]"),
        (r#"[["a"]]"#, "input[0]"),
        (r#"[{}]"#, "input[0]"),
        (r#"[null]"#, "input[0]"),
        ("3", "input"),
        ("1.5", "input"),
        ("false", "input"),
    ] {
        assert_refused(
            &ivy,
            format!("{{\"input\": {input}}}").as_bytes(),
            &json!(param),
        );
    }
    let mut texts = vec!["a".to_owned(); 300];
    texts[271] = "a ".repeat(500);
    let body = json!({"input": texts, "truncate": false}).to_string();
    let message = assert_refused(&ivy, body.as_bytes(), &json!("input[271]"));
    assert!(
        message.contains("502 tokens, the limit is 128"),
        "{message}"
    );
}

#[test]
fn in_10_an_error_of_a_worker_names_the_callers_index_not_the_chunks() {
    let (first, second) = (Tulip::start(), Tulip::start());
    let ivy = Ivy::over(&[&first, &second]);
    support::eventually("both up", || {
        ivy.metric(&format!(
            "flowerbed_replica_up{{replica=\"{}\"}}",
            second.address
        )) == Some(1.0)
            && ivy.metric(&format!(
                "flowerbed_replica_up{{replica=\"{}\"}}",
                first.address
            )) == Some(1.0)
    });
    for tulip in [&first, &second] {
        tulip.change(|behaviour| behaviour.bad_row = Some(0));
    }
    // Chunks of more than one sequence: the first row of the first chunk is reported.
    let answer = ivy.embed(&json!({"input": vec!["a ".repeat(100); 40]}));
    assert_eq!(
        (answer.status, answer.error()["code"].clone()),
        (500, json!("engine_failed"))
    );
    assert_eq!(answer.error()["param"], "input[0]");
    let refusal = Error::new(ErrorKind::EngineFailed, "this sequence failed").at_index(1);
    for tulip in [&first, &second] {
        tulip.change(|behaviour| behaviour.error = Some(refusal.clone()));
    }
    let calls_before = first.calls().len() + second.calls().len();
    let answer = ivy.embed(&json!({"input": vec!["a ".repeat(100); 40]}));
    assert_eq!(answer.status, 500);
    assert!(
        first.calls().len() + second.calls().len() > calls_before + 1,
        "it was split"
    );
    let param = answer.error()["param"].as_str().unwrap().to_owned();
    let index: usize = param
        .trim_start_matches("input[")
        .trim_end_matches(']')
        .parse()
        .unwrap();
    let sizes: Vec<usize> = first
        .calls()
        .iter()
        .chain(&second.calls())
        .map(|call| call.sequences().len())
        .collect();
    assert!(
        index == 1 || sizes.iter().any(|size| (index - 1).is_multiple_of(*size)),
        "{param}"
    );
}

#[test]
fn in_06_a_wrong_token_array_names_the_langchain_switch() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (input, param) in [
        ("[1, 2.5]", "input[1]"),
        ("[1, -2]", "input[1]"),
        ("[1, 4294967296]", "input[1]"),
        ("[1, 1e30]", "input[1]"),
        ("[100]", "input[0]"),
        ("[1, 100]", "input[1]"),
        ("[1, \"a\"]", "input[1]"),
        ("[1, [2]]", "input[1]"),
        ("[[1], \"a\"]", "input[1]"),
        ("[[1], 2]", "input[1]"),
        ("[[1], [2, null]]", "input[1]"),
        ("[[1], [2, [3]]]", "input[1]"),
        ("[[1], [9, 100]]", "input[1]"),
    ] {
        let body = format!("{{\"input\": {input}}}");
        let message = assert_refused(&ivy, body.as_bytes(), &json!(param));
        assert!(
            message.contains("check_embedding_ctx_length=False"),
            "{message}"
        );
    }
    assert!(tulip.calls().is_empty());
}

#[test]
fn fields_are_known_given_once_and_of_their_type() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (field, param) in [
        (r#""dimension": 3"#, "dimension"),
        (r#""input": "b""#, "input"),
        (r#""dimensions": 0"#, "dimensions"),
        (r#""dimensions": -1"#, "dimensions"),
        (r#""dimensions": 9"#, "dimensions"),
        (r#""dimensions": 4294967296"#, "dimensions"),
        (r#""dimensions": 2.5"#, "dimensions"),
        (r#""dimensions": "8""#, "dimensions"),
        (r#""encoding_format": "hex""#, "encoding_format"),
        (r#""encoding_format": 1"#, "encoding_format"),
        (r#""user": 1"#, "user"),
        (r#""truncate": "yes""#, "truncate"),
        (r#""truncation_direction": "up""#, "truncation_direction"),
        (r#""normalize": true"#, "normalize"),
        (r#""parameters": {}"#, "parameters"),
        (r#""model": ["tiny"]"#, "model"),
        (r#""prompt_name": "nope""#, "prompt_name"),
    ] {
        assert_refused(
            &ivy,
            format!("{{\"input\": \"a\", {field}}}").as_bytes(),
            &json!(param),
        );
    }
    let nulls = json!({
        "input": "a", "model": null, "encoding_format": null, "dimensions": null, "user": null,
        "truncate": null, "truncation_direction": null, "prompt_name": null
    });
    assert_eq!(ivy.embed(&nulls).status, 200);
    assert_eq!(ivy.embed(&json!({"input": "a", "user": "u-1"})).status, 200);
}

#[test]
fn hostile_json_is_refused_and_the_server_lives() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let deep = "[".repeat(1_000_000);
    for (body, param) in [
        (format!("{{\"input\": {deep}"), "input[0]"),
        (format!("{{\"user\": {deep}"), "user"),
        (r#"{"input": "\ud800"}"#.to_owned(), "input"),
        (r#"{"input": ["a", "b\udc00"]}"#.to_owned(), "input[1]"),
        (r#"{"input": ["a", "b"#.to_owned(), "input[1]"),
    ] {
        assert_refused(&ivy, body.as_bytes(), &json!(param));
    }
    assert_refused(&ivy, b"{\"input\": \"\xff\xfe\"}", &json!("input"));
    assert_refused(&ivy, br#"{"\ud800": "a"}"#, &Value::Null);
    let text = r#"{"input": "a"}"#;
    let wide =
        |to_bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(to_bytes).collect::<Vec<u8>>();
    for body in [
        [b"\xef\xbb\xbf", text.as_bytes()].concat(),
        [&b"\xff\xfe"[..], &wide(u16::to_le_bytes)].concat(),
        wide(u16::to_le_bytes),
        wide(u16::to_be_bytes),
    ] {
        let message = assert_refused(&ivy, &body, &Value::Null);
        assert!(
            message.ends_with("send it in UTF-8, without a byte order mark"),
            "{message}"
        );
    }
    assert_refused(&ivy, br#"{"input": "a" "#, &Value::Null);
    let long_name = "x".repeat(10_000);
    let body = format!("{{\"{long_name}\": 1}}");
    let message = assert_refused(&ivy, body.as_bytes(), &json!("x".repeat(64)));
    assert!(message.len() < 300);
    assert_eq!(ivy.embed(&json!({"input": "a\u{0}b"})).status, 200);
}

#[test]
fn unknown_routes_and_methods_are_answered_in_json() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let wrong_method = ivy.client.get("/v1/embeddings");
    assert_eq!(
        (wrong_method.status, wrong_method.error()["code"].clone()),
        (405, json!("method_not_allowed"))
    );
    assert_eq!(wrong_method.header("allow"), Some("POST"));
    let no_route = ivy.client.get("/v2/embeddings");
    assert_eq!(
        (no_route.status, no_route.error()["code"].clone()),
        (404, json!("not_found"))
    );
}

#[test]
fn pa_11_only_served_model_names_are_answered_with_the_served_id() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for name in ["flowerbed/tiny-bert", "tiny-bert", "tiny", "default"] {
        let answer = ivy.embed(&json!({"input": "a", "model": name}));
        assert_eq!(answer.json()["model"], "flowerbed/tiny-bert", "{name}");
    }
    assert_eq!(
        ivy.embed(&json!({"input": "a"})).json()["model"],
        "flowerbed/tiny-bert"
    );
    let unknown = ivy.embed(&json!({"input": "a", "model": "text-embedding-3-small"}));
    assert_eq!(
        (unknown.status, unknown.error()["param"].clone()),
        (404, json!("model"))
    );
    assert!(
        unknown.error()["message"]
            .as_str()
            .unwrap()
            .contains("flowerbed/tiny-bert")
    );
    assert_eq!(ivy.embed(&json!({"input": "a", "model": ""})).status, 400);
    let models = ivy.client.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "flowerbed/tiny-bert");
}

#[test]
fn an_answer_of_another_shape_is_a_500_and_never_fewer_vectors() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    tulip.change(|behaviour| behaviour.rows_missing = 1);
    let answer = ivy.embed(&json!({"input": ["a", "b"]}));
    assert_eq!(
        (answer.status, answer.error()["code"].clone()),
        (500, json!("internal"))
    );
}
