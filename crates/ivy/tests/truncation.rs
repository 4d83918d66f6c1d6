//! One table for over-long inputs: the server's default, the request's switch, the side, the kind of
//! input, and every route.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use flowerbed_protocol::v1::Head;
use serde_json::{Value, json};
use support::Ivy;
use support::http::Answer;
use support::model::{CLS, MAX_LENGTH, SEP};
use support::tulip::Tulip;

/// A route, and the body in which it takes one input with options.
type Route = (&'static str, fn(Value, Value) -> Value);

fn with(mut body: Value, options: &Value) -> Value {
    for (name, value) in options.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

const ROUTES: [Route; 5] = [
    ("/v1/embeddings", |input, options| {
        with(json!({"input": input}), &options)
    }),
    ("/embed", |input, options| {
        with(json!({"inputs": input}), &options)
    }),
    ("/embed_all", |input, options| {
        with(json!({"inputs": input}), &options)
    }),
    ("/", |input, options| {
        with(json!({"inputs": input}), &options)
    }),
    (
        "/",
        |input, options| json!({"inputs": input, "parameters": options}),
    ),
];

const SIMILARITY: Route = ("/similarity", |input, options| {
    let inputs = json!({"source_sentence": "a", "sentences": [input]});
    json!({"inputs": inputs, "parameters": options})
});

/// `a`, 200 times `b`, and `c`: 204 tokens with the special ones.
fn text() -> Value {
    json!(format!("a {}c", "b ".repeat(200)))
}

fn ids() -> Vec<u32> {
    [&[CLS, 4][..], &[6; 200], &[8, SEP]].concat()
}

fn is_cut(options: &Value, auto_truncate: bool) -> bool {
    options["truncate"].as_bool().unwrap_or(auto_truncate)
}

fn is_left(options: &Value) -> bool {
    options["truncation_direction"]
        .as_str()
        .is_some_and(|side| side.eq_ignore_ascii_case("left"))
}

/// The ids that the model must be given for the text, or for the array.
fn kept(options: &Value, is_array: bool) -> Vec<u32> {
    let all = ids();
    match (is_array, is_left(options)) {
        (true, false) => all[..MAX_LENGTH].to_vec(),
        (true, true) => all[all.len() - MAX_LENGTH..].to_vec(),
        (false, false) => [&all[..MAX_LENGTH - 1], &[SEP]].concat(),
        (false, true) => [&[CLS], &all[all.len() - MAX_LENGTH + 1..]].concat(),
    }
}

fn all_options() -> Vec<Value> {
    let mut all = Vec::new();
    for truncate in [
        json!({}),
        json!({"truncate": null}),
        json!({"truncate": true}),
        json!({"truncate": false}),
    ] {
        for side in [
            json!({}),
            json!({"truncation_direction": "right"}),
            json!({"truncation_direction": "left"}),
            json!({"truncation_direction": "Left"}),
        ] {
            all.push(with(truncate.clone(), &side));
        }
    }
    all
}

fn message(path: &str, answer: &Answer) -> String {
    if path == "/v1/embeddings" {
        assert_eq!(answer.status, 400);
        return answer.error()["message"].as_str().unwrap().to_owned();
    }
    assert_eq!(answer.status, 422);
    answer.tei_error().0
}

#[test]
fn pa_07_truncation_is_one_table_on_every_route() {
    let tulip = Tulip::start();
    for auto_truncate in [true, false] {
        let ivy = Ivy::with(&[&tulip], |config| {
            config["auto_truncate"] = json!(auto_truncate)
        });
        ivy.await_ready();
        let info = ivy.client.get("/info").json();
        assert_eq!(info["auto_truncate"], auto_truncate);
        let mut num_rows = 0;
        for (path, body) in ROUTES {
            for options in all_options() {
                for (input, is_array) in [
                    (text(), false),
                    (json!([text()]), false),
                    (json!(ids()), true),
                    (json!([ids()]), true),
                ] {
                    let answer = ivy.client.post(path, &body(input, options.clone()));
                    check(path, &answer, &tulip, &options, auto_truncate, is_array);
                    num_rows += 1;
                }
            }
        }
        for options in all_options() {
            let (path, body) = SIMILARITY;
            let answer = ivy.client.post(path, &body(text(), options.clone()));
            check(path, &answer, &tulip, &options, auto_truncate, false);
            num_rows += 1;
        }
        assert_eq!(num_rows, 5 * 16 * 4 + 16);
    }
}

fn check(
    path: &str,
    answer: &Answer,
    tulip: &Tulip,
    options: &Value,
    auto_truncate: bool,
    is_array: bool,
) {
    let what = format!("{path} {options} auto {auto_truncate} array {is_array}");
    if is_cut(options, auto_truncate) {
        assert_eq!(answer.status, 200, "{what}");
        assert_eq!(answer.header("x-flowerbed-truncated"), Some("1"), "{what}");
        let call = tulip.calls().pop().unwrap();
        assert_eq!(
            *call.sequences().last().unwrap(),
            kept(options, is_array),
            "{what}"
        );
        let is_tokens = call.message.head() == Head::Tokens;
        assert_eq!(is_tokens, path == "/embed_all");
    } else {
        let message = message(path, answer);
        for part in ["[0]", "204", &MAX_LENGTH.to_string()] {
            assert!(message.contains(part), "{what}: {message}");
        }
    }
}

#[test]
fn pa_07_the_models_own_side_holds_where_a_request_names_none() {
    let tulip = Tulip::start();
    let ivy = Ivy::with(&[&tulip], |config| {
        config["model"]["text"]["truncation_side"] = json!("left")
    });
    ivy.await_ready();
    assert_eq!(
        ivy.client.get("/info").json()["truncation_direction"],
        "left"
    );
    for (path, body) in ROUTES {
        for (options, same_as) in [
            (json!({}), json!({"truncation_direction": "left"})),
            (json!({"truncation_direction": "right"}), json!({})),
        ] {
            for (input, is_array) in [(text(), false), (json!(ids()), true)] {
                let answer = ivy.client.post(path, &body(input, options.clone()));
                assert_eq!(answer.status, 200);
                let sequences = tulip.calls().pop().unwrap().sequences();
                assert_eq!(sequences, [kept(&same_as, is_array)], "{path} {options}");
            }
        }
    }
}

#[test]
fn what_is_not_too_long_is_the_same_under_every_rule() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (path, body) in ROUTES.into_iter().chain([SIMILARITY]) {
        for options in all_options() {
            let answer = ivy.client.post(path, &body(json!("a b"), options));
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("x-flowerbed-truncated"), Some("0"));
        }
    }
}
