//! `POST /v1/embeddings`: every input gets its vector, in every form that OpenAI's clients send.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use base64::Engine as _;
use flowerbed_protocol::packed;
use serde_json::json;
use support::model::{self, CLS, DIMENSIONS, SEP, vector};
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, http::Answer};

fn prompt_tokens(answer: &Answer) -> u64 {
    let usage = answer.json()["usage"].clone();
    assert_eq!(usage["prompt_tokens"], usage["total_tokens"]);
    usage["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn in_07_a_string_and_a_list_of_one_string_give_the_same_vector() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let one = ivy.embed(&json!({"input": "the flowerbed", "model": "default"}));
    // the, flower, ##bed
    assert_eq!(one.vectors(), [vector(&[CLS, 56, 57, 58, SEP], DIMENSIONS)]);
    assert_eq!(
        one.body,
        ivy.embed(&json!({"input": ["the flowerbed"]})).body
    );
    assert_eq!(
        one.body,
        ivy.client
            .post("/embeddings", &json!({"input": "the flowerbed"}))
            .body
    );
}

#[test]
fn in_06_token_arrays_give_the_vector_of_their_text() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let text = ivy.vectors(&json!({"input": "a b"}));
    let ids = [CLS, 4, 6, SEP];
    assert_eq!(ivy.vectors(&json!({"input": ids})), text);
    assert_eq!(
        ivy.vectors(&json!({"input": [ids, [5]]})),
        [text[0].clone(), vector(&[5], 8)]
    );
}

#[test]
fn in_06_an_over_long_token_array_follows_the_truncation_rule() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let ids = vec![4; model::MAX_LENGTH + 1];
    let cut = ivy.embed(&json!({"input": [ids]}));
    assert_eq!(
        cut.vectors(),
        [vector(&vec![4; model::MAX_LENGTH], DIMENSIONS)]
    );
    assert_eq!(cut.header("x-flowerbed-truncated"), Some("1"));
    let refused = ivy.embed(&json!({"input": [[4], ids], "truncate": false}));
    assert_eq!(refused.error()["param"], "input[1]");
}

#[test]
fn in_01_an_empty_text_is_embedded_alone_and_in_a_list() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let empty = vector(&[CLS, SEP], DIMENSIONS);
    assert_eq!(
        ivy.vectors(&json!({"input": ""})),
        std::slice::from_ref(&empty)
    );
    let rows = ivy.vectors(&json!({"input": ["a", "", " \t\n", "\u{3000}", "b"]}));
    assert_eq!(rows.len(), 5);
    assert!(rows[1..4].iter().all(|row| *row == empty));
}

#[test]
fn in_17_equal_texts_keep_their_own_rows_in_order() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let rows = ivy.vectors(&json!({"input": ["a", "b", "a", "a"]}));
    let [a, b] = [
        vector(&[CLS, 4, SEP], DIMENSIONS),
        vector(&[CLS, 6, SEP], DIMENSIONS),
    ];
    assert_eq!(rows, [a.clone(), b, a.clone(), a]);
}

#[test]
fn pa_01_base64_decodes_to_the_floats_of_the_float_answer() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for dimensions in [1, 3, DIMENSIONS] {
        let ask = |format: &str| {
            ivy.embed(&json!({
                "input": ["a", "b"], "encoding_format": format, "dimensions": dimensions
            }))
        };
        let floats = ask("float").vectors();
        let packed = ask("base64").json();
        for (index, row) in floats.iter().enumerate() {
            assert_eq!(row.len(), dimensions as usize);
            let text = packed["data"][index]["embedding"].as_str().unwrap();
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(text)
                .unwrap();
            let bits: Vec<u32> = row.iter().map(|value| value.to_bits()).collect();
            assert_eq!(packed::to_u32s(&bytes).unwrap(), bits);
        }
    }
}

#[test]
fn pa_01_bytes_are_the_floats_of_the_float_answer_without_json() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for dimensions in [1, 3, DIMENSIONS] {
        let ask = |format: &str| {
            ivy.embed(&json!({
                "input": ["a", "b c"], "encoding_format": format, "dimensions": dimensions
            }))
        };
        let floats = ask("float");
        let octets = ask("bytes");
        assert_eq!(octets.status, 200);
        for (name, value) in [
            ("content-type", "application/octet-stream"),
            ("x-flowerbed-shape", &format!("2,{dimensions}")),
            ("x-flowerbed-tokens", &prompt_tokens(&floats).to_string()),
            ("x-flowerbed-space", model::SPACE),
            ("x-flowerbed-truncated", "0"),
        ] {
            assert_eq!(octets.header(name), Some(value), "{name}");
        }
        let rows = floats.vectors().concat();
        let expected: Vec<u8> = rows.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(octets.body, expected);
    }
    let listed = ivy.client.post(
        "/embed",
        &json!({"inputs": "a", "encoding_format": "bytes"}),
    );
    assert_eq!(listed.status, 422);
    assert!(listed.tei_error().0.contains("/v1/embeddings"));
    let unknown = ivy.embed(&json!({"input": "a", "encoding_format": "bits"}));
    let message = unknown.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("float, base64 or bytes"), "{message}");
}

#[test]
fn pa_04_the_native_size_is_always_served_and_listed_sizes_bind() {
    let mut behaviour = Behaviour::default();
    behaviour.info.allowed_dimensions = vec![2, 4];
    let tulip = Tulip::start_at("127.0.0.1:0", behaviour);
    let ivy = Ivy::over(&[&tulip]);
    for (dimensions, status) in [(2, 200), (4, 200), (8, 200), (3, 400), (9, 400)] {
        let answer = ivy.embed(&json!({"input": "a", "dimensions": dimensions}));
        assert_eq!(answer.status, status, "{dimensions}");
        if status == 400 {
            let error = answer.error();
            assert_eq!(error["param"], "dimensions");
            assert!(error["message"].as_str().unwrap().contains("2, 4 and 8"));
        }
    }
}

#[test]
fn pa_15_usage_counts_the_ids_that_the_model_runs() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    assert_eq!(prompt_tokens(&ivy.embed(&json!({"input": ["a b", ""]}))), 6);
    let prompted = ivy.embed(&json!({"input": ["a b"], "prompt_name": "query"}));
    assert_eq!(prompt_tokens(&prompted), 5);
    let cut = ivy.embed(&json!({"input": ["a ".repeat(10_000), "b".to_owned()]}));
    assert_eq!(prompt_tokens(&cut), model::MAX_LENGTH as u64 + 3);
    assert_eq!(cut.header("x-flowerbed-truncated"), Some("1"));
}

#[test]
fn pa_10_a_prompt_equals_its_text_typed_by_hand() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let prompted = ivy.vectors(&json!({"input": "flower", "prompt_name": "query"}));
    assert_eq!(prompted, ivy.vectors(&json!({"input": "the flower"})));
    let unknown = ivy
        .embed(&json!({"input": "flower", "prompt_name": "qery"}))
        .error();
    assert_eq!(unknown["param"], "prompt_name");
    assert!(
        unknown["message"]
            .as_str()
            .unwrap()
            .contains("known are query")
    );
}

#[test]
fn pa_10_an_unpooled_prompt_is_left_out_by_a_segment() {
    let tulip = Tulip::start();
    let ivy = Ivy::with(&[&tulip], |config| {
        config["model"]["text"]["pool_prompt"] = json!(false)
    });
    ivy.await_ready();
    ivy.vectors(&json!({"input": ["a", "b c"], "prompt_name": "query"}));
    ivy.vectors(&json!({"input": ["a"]}));
    let calls = tulip.calls();
    let segments = packed::to_u32s(&calls[0].message.segments).unwrap();
    assert_eq!(segments, [0, 2, 4, 1, 2, 5]);
    assert!(calls[1].message.segments.is_empty());
}

#[test]
fn the_answer_carries_its_space_times_and_ids() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [("x-request-id", "mine-1"), ("traceparent", trace)];
    let answer = ivy
        .client
        .post_with("/v1/embeddings", &headers, &json!({"input": "a"}));
    for (name, value) in [
        ("x-request-id", "mine-1"),
        ("x-flowerbed-space", model::SPACE),
        ("x-flowerbed-queue-us", "11"),
        ("x-flowerbed-step-us", "22"),
        ("x-flowerbed-truncated", "0"),
    ] {
        assert_eq!(answer.header(name), Some(value), "{name}");
    }
    assert_eq!(tulip.calls()[0].header("traceparent"), Some(trace));
    assert_eq!(
        ivy.embed(&json!({})).header("x-request-id").unwrap().len(),
        32
    );
}

#[test]
fn a_worker_on_a_unix_socket_is_asked_with_the_shared_secret() {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", folder.path().join("w.sock").display());
    let tulip = Tulip::start_at(&address, Behaviour::default());
    let ivy = Ivy::with(&[&tulip], |config| config["worker_token"] = json!("hush"));
    ivy.await_ready();
    ivy.vectors(&json!({"input": "a"}));
    assert_eq!(
        tulip.calls()[0].header("authorization"),
        Some("Bearer hush")
    );
}

#[test]
fn lanes_follow_cost_and_a_header_may_only_lower_them() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let small = json!({"input": "a"});
    let large = json!({"input": vec!["a ".repeat(200); 5]});
    for (body, asked, lane) in [
        (&small, None, 1),
        (&small, Some("scoring"), 2),
        (&small, Some("bulk"), 3),
        (&large, None, 3),
        (&large, Some("online"), 3),
    ] {
        let headers: Vec<_> = asked
            .map(|asked| ("x-flowerbed-lane", asked))
            .into_iter()
            .collect();
        assert_eq!(
            ivy.client
                .post_with("/v1/embeddings", &headers, body)
                .status,
            200
        );
        assert_eq!(
            tulip.calls().last().unwrap().message.lane,
            lane,
            "{asked:?}"
        );
    }
    let bad = ivy
        .client
        .post_with("/v1/embeddings", &[("x-flowerbed-lane", "fast")], &small);
    assert_eq!(
        (bad.status, bad.error()["param"].clone()),
        (400, json!("x-flowerbed-lane"))
    );
}
