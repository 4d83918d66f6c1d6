//! The documented routes are those that are served, and the document needs nothing from elsewhere.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::Ivy;
use support::tulip::Tulip;

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

#[test]
fn each_documented_route_is_served_and_answers_no_other_method() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let document = ivy.client.get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 15);
    for (path, operations) in paths {
        for method in METHODS {
            let answer = ivy.client.send(&method.to_uppercase(), path, &[], b"");
            let is_documented = operations.get(method).is_some();
            assert_ne!(answer.status, 404, "{method} {path}");
            assert_eq!(answer.status != 405, is_documented, "{method} {path}");
        }
    }
}

/// Bodies that hold every documented field of a route, made from the document itself.
fn full_body(schema: &Value) -> Value {
    let example = |name: &str, field: &Value| match name {
        "input" => json!("a"),
        "inputs" if field["oneOf"][0]["type"] == "string" => json!("a"),
        "inputs" => json!({"source_sentence": "a", "sentences": ["b"]}),
        "ids" => json!([4]),
        "parameters" => Value::Null,
        "dimensions" => json!(2),
        "encoding_format" => json!("float"),
        "truncation_direction" => json!("left"),
        "prompt_name" => json!("query"),
        "model" => json!("default"),
        "user" => json!("u"),
        _ if field["type"][0] == "boolean" => json!(true),
        _ => panic!("a field that this test does not know: {name}"),
    };
    schema["properties"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, field)| (name.clone(), example(name, field)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn every_documented_field_is_taken_and_every_other_refused() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let document = ivy.client.get("/openapi.json").json();
    let mut num_bodies = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let content = &operations["post"]["requestBody"]["content"];
        let schema = &content["application/json"]["schema"];
        if schema.is_null() {
            continue;
        }
        let mut body = full_body(schema);
        let answer = ivy.client.post(path, &body);
        assert_eq!(
            answer.status,
            200,
            "{path} {body}: {}",
            String::from_utf8_lossy(&answer.body)
        );
        body["made_up"] = json!(1);
        let refused = ivy.client.post(path, &body).status;
        assert!(
            operations["post"]["responses"]
                .get(refused.to_string())
                .is_some()
        );
        num_bodies += 1;
    }
    assert_eq!(num_bodies, 9);
}

#[test]
fn the_page_lists_every_route_and_loads_nothing() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let document = ivy.client.get("/openapi.json").json();
    let page = ivy.client.get("/docs");
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'"));
    let html = String::from_utf8(page.body.clone()).unwrap();
    for path in document["paths"].as_object().unwrap().keys() {
        assert!(html.contains(&format!(" {path}</code>")), "{path}");
    }
    assert!(!html.contains("<script") && !html.contains("//"));
}
