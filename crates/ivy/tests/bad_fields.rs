//! Every documented field of every route, with values that it does not take: the answer names the
//! field, and the index where there is a list, in the envelope of the route.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::Ivy;
use support::tulip::Tulip;

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

/// No JSON at all, wherever they stand.
const BROKEN: [&str; 9] = [
    "NaN",
    "-Infinity",
    "1e999",
    r#""\ud800""#,
    r#""\udc00""#,
    r#""a\ud83dz""#,
    "\"a\u{1}b\"",
    "'a'",
    "nul",
];
const NUMBERS: [&str; 8] = [
    "0",
    "-1",
    "1.5",
    "8.0",
    "9999999999",
    "18446744073709551615",
    "36893488147419103232",
    "-1e30",
];
const NESTED: [&str; 5] = ["[]", r#"["a"]"#, "[[4]]", "{}", r#"{"a": 1}"#];
const WORDS: [&str; 3] = [r#""""#, r#""nonsense""#, r#""1""#];
const BOOLEANS: [&str; 2] = ["true", "false"];

/// What a field does not take, by its schema.
fn wrong_values(field: &str, schema: &Value) -> Vec<&'static str> {
    let mut values = [&BROKEN[..], &NESTED].concat();
    let takes = |kind: &str| {
        schema["type"]
            .as_array()
            .is_some_and(|kinds| kinds.contains(&json!(kind)))
    };
    if !takes("boolean") {
        values.extend(BOOLEANS);
    }
    // Every number is wrong, for dimensions too: the model has four.
    values.extend(NUMBERS);
    // Any text may be a user, and which models there are is tested elsewhere.
    if !matches!(field, "user" | "model") {
        values.extend(WORDS);
    }
    values.retain(|value| field != "parameters" || *value != "{}");
    values
}

/// Refused inputs, as (value, where it is wrong).
fn wrong_inputs(field: &str, schema: &Value) -> Vec<(String, String)> {
    let forms = schema["oneOf"].as_array().unwrap();
    let takes = |kind: &str| forms.iter().any(|form| form["type"] == kind);
    let items = |kind: &str| forms.iter().any(|form| form["items"]["type"] == kind);
    let (texts, ids) = (takes("string"), items("integer"));
    let mut all = Vec::new();
    let mut add = |value: String, place: String| all.push((value, place));
    for value in [&BROKEN[..], &NUMBERS, &BOOLEANS, &["null", "[]", "{}"]].concat() {
        let place = match value {
            "{}" if takes("object") => format!("{field}.source_sentence"),
            _ => field.to_owned(),
        };
        add(value.to_owned(), place);
    }
    let in_lists = [
        &BROKEN[..],
        &NUMBERS,
        &BOOLEANS,
        &["null", "{}", "[[]]", "[true]"],
    ]
    .concat();
    if texts {
        for value in &in_lists {
            add(format!(r#"["a", {value}, "b"]"#), format!("{field}[1]"));
        }
    } else {
        add(r#""a""#.to_owned(), field.to_owned());
        if ids {
            add(r#"["a"]"#.to_owned(), format!("{field}[0]"));
        }
    }
    if ids {
        for value in in_lists
            .into_iter()
            .filter(|value| *value != "0")
            .chain([r#""a""#])
        {
            add(format!("[4, {value}]"), format!("{field}[1]"));
            add(format!("[[4], {value}]"), format!("{field}[1]"));
            let is_empty = value == "[[]]";
            if !is_empty {
                add(format!("[[4], [4, {value}]]"), format!("{field}[1]"));
            }
        }
    }
    if takes("object") {
        for value in [&BROKEN[..], &NUMBERS, &BOOLEANS, &NESTED, &["null"]].concat() {
            let source = format!(r#"{{"source_sentence": {value}, "sentences": ["a"]}}"#);
            add(source, format!("{field}.source_sentence"));
            let sentences = format!(r#"{{"source_sentence": "a", "sentences": ["a", {value}]}}"#);
            add(sentences, format!("{field}.sentences[1]"));
        }
        let text = r#"{"source_sentence": "a", "sentences": 3}"#;
        add(text.to_owned(), format!("{field}.sentences"));
    }
    all
}

/// Sends a body; gives the message of its refusal after a look at its status and envelope.
fn refused(ivy: &Ivy, path: &str, body: &str, place: &str) -> String {
    let answer = ivy.client.send("POST", path, &JSON, body.as_bytes());
    let shown = format!("{path} {body}: {}", String::from_utf8_lossy(&answer.body));
    let is_empty = shown.contains("is an empty list");
    let message = if path.ends_with("embeddings") {
        assert_eq!(answer.status, 400, "{shown}");
        let error = answer.error();
        assert_eq!(error["type"], "invalid_request_error", "{shown}");
        assert_eq!(error["param"], place, "{shown}");
        error["message"].as_str().unwrap().to_owned()
    } else {
        let expected = if is_empty {
            (400, "Empty")
        } else {
            (422, "Validation")
        };
        let (message, kind) = answer.tei_error();
        assert_eq!((answer.status, kind.as_str()), expected, "{shown}");
        message
    };
    let says_what_to_do = [
        "must be ",
        "is not valid JSON: ",
        "gives ",
        "known are ",
        "missing",
    ];
    assert!(
        says_what_to_do.iter().any(|words| message.contains(words)),
        "{shown}"
    );
    assert!(message.len() < 400, "{shown}");
    assert_eq!(
        body.contains("\\ud"),
        message.contains("surrogate pair"),
        "{shown}"
    );
    let is_no_number = body.contains("NaN") || body.contains("Infinity");
    assert_eq!(is_no_number, message.contains("neither NaN nor"), "{shown}");
    message
}

#[test]
fn every_field_is_named_when_its_value_is_wrong() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let document = ivy.client.get("/openapi.json").json();
    let mut num_refused = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        let content = &operations["post"]["requestBody"]["content"];
        let Some(fields) = content["application/json"]["schema"]["properties"].as_object() else {
            continue;
        };
        let inputs = ["input", "inputs", "ids"]
            .into_iter()
            .find(|name| fields.contains_key(*name))
            .unwrap();
        let good = match (inputs, path.as_str()) {
            ("ids", _) => "[4]",
            (_, "/similarity") => r#"{"source_sentence": "a", "sentences": ["b"]}"#,
            _ => r#""a""#,
        };
        let mut check = |body: String, place: &str| {
            let message = refused(&ivy, path, &body, place);
            assert!(message.contains(place), "{path} {body}: {message}");
            num_refused += 1;
        };
        for (value, place) in wrong_inputs(inputs, &fields[inputs]) {
            check(format!(r#"{{"{inputs}": {value}}}"#), &place);
        }
        for (field, schema) in fields.iter().filter(|(field, _)| *field != inputs) {
            for value in wrong_values(field, schema) {
                check(
                    format!(r#"{{"{inputs}": {good}, "{field}": {value}}}"#),
                    field,
                );
            }
        }
        let Some(nested) = fields.get("parameters") else {
            continue;
        };
        for (field, schema) in nested["properties"].as_object().unwrap() {
            for value in wrong_values(field, schema) {
                let body =
                    format!(r#"{{"{inputs}": {good}, "parameters": {{"{field}": {value}}}}}"#);
                check(body, field);
            }
        }
    }
    assert!(num_refused > 1_500, "{num_refused}");
    assert!(tulip.calls().is_empty());
}

#[test]
fn headers_that_steer_a_request_are_named_when_their_value_is_wrong() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let lanes = ["", "fast", "Online", "online,bulk", "0"];
    let timeouts = [
        "",
        "0",
        "-1",
        "1.5",
        "1e3",
        "NaN",
        "99999999999999999999",
        "5s",
    ];
    let all = lanes
        .map(|value| ("x-flowerbed-lane", value))
        .into_iter()
        .chain(timeouts.map(|value| ("x-flowerbed-timeout-ms", value)));
    for (name, value) in all {
        let answer =
            ivy.client
                .post_with("/v1/embeddings", &[(name, value)], &json!({"input": "a"}));
        let error = answer.error();
        let shown = format!("{name}: {value:?}: {error}");
        assert_eq!(
            (answer.status, &error["param"]),
            (400, &json!(name)),
            "{shown}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{name} must be ")), "{shown}");
        let answer = ivy
            .client
            .post_with("/embed", &[(name, value)], &json!({"inputs": "a"}));
        assert_eq!(answer.status, 422, "{shown}");
        assert_eq!(answer.tei_error().0, message);
    }
    for (name, first, second) in [
        ("x-flowerbed-lane", "bulk", "online"),
        ("x-flowerbed-timeout-ms", "1000", "2000"),
    ] {
        let twice = [(name, first), (name, second)];
        let answer = ivy
            .client
            .post_with("/v1/embeddings", &twice, &json!({"input": "a"}));
        let error = answer.error();
        assert_eq!((answer.status, &error["param"]), (400, &json!(name)));
        assert!(error["message"].as_str().unwrap().contains("given once"));
    }
    assert!(tulip.calls().is_empty());
}
