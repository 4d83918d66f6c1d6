//! The routes of text-embeddings-inference give what its clients expect of them.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use flowerbed_protocol::v1::{Head, Normalize};
use flowerbed_protocol::{Error, ErrorKind};
use serde_json::{Value, json};
use support::model::{self, CLS, DIMENSIONS, SEP, TOKEN_DIMENSIONS, vector};
use support::tulip::{Behaviour, Tulip};
use support::{Ivy, eventually, http::Answer};

const RUN_THE_MODEL: [&str; 3] = ["/embed", "/embed_all", "/"];

fn vectors(answer: &Answer) -> Vec<Vec<f32>> {
    answer.value()
}

#[test]
fn in_07_a_string_and_a_list_of_one_string_give_the_same_bare_list() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let expected = [vector(&[CLS, 56, 57, 58, SEP], DIMENSIONS)];
    for path in ["/embed", "/", "/invocations"] {
        let one = ivy.client.post(path, &json!({"inputs": "the flowerbed"}));
        assert_eq!(vectors(&one), expected, "{path}");
        let list = ivy.client.post(path, &json!({"inputs": ["the flowerbed"]}));
        assert_eq!(one.body, list.body);
    }
    assert_eq!(tulip.calls()[0].message.head(), Head::Embed);
}

#[test]
fn normalize_is_on_unless_a_request_turns_it_off() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    for (asked, sent) in [
        (json!(null), Normalize::On),
        (json!(true), Normalize::On),
        (json!(false), Normalize::Off),
    ] {
        let body = json!({"inputs": "a", "normalize": asked, "dimensions": 3});
        let answer = ivy.client.post("/embed", &body);
        assert_eq!(vectors(&answer)[0].len(), 3);
        let output = tulip.calls().last().unwrap().message.outputs[0];
        assert_eq!((output.normalize(), output.dimensions), (sent, 3));
    }
    // OpenAI's route leaves it to the model.
    ivy.vectors(&json!({"input": "a"}));
    let output = tulip.calls().last().unwrap().message.outputs[0];
    assert_eq!(output.normalize(), Normalize::Model);
}

#[test]
fn embed_all_gives_each_token_its_row_over_several_workers() {
    let tulips = [Tulip::start(), Tulip::start()];
    let ivy = Ivy::with(&[&tulips[0], &tulips[1]], |config| {
        config["model"]["text"]["pool_prompt"] = json!(false)
    });
    eventually("both up", || {
        let up = |tulip: &Tulip| {
            let series = format!("flowerbed_replica_up{{replica=\"{}\"}}", tulip.address);
            ivy.metric(&series) == Some(1.0)
        };
        tulips.iter().all(up)
    });
    let mut texts = vec!["a b".to_owned(), String::new()];
    texts.extend(vec!["a ".repeat(100); 40]);
    let answer = ivy.client.post("/embed_all", &json!({"inputs": texts}));
    let rows: Vec<Vec<Vec<f32>>> = answer.value();
    let of = |ids: &[u32]| -> Vec<Vec<f32>> {
        ids.iter()
            .map(|id| vector(&[*id], TOKEN_DIMENSIONS))
            .collect()
    };
    assert_eq!(rows.len(), 42);
    assert_eq!(rows[0], of(&[CLS, 4, 6, SEP]));
    assert_eq!(rows[1], of(&[CLS, SEP]));
    assert!(rows[2..].iter().all(|rows| rows.len() == 102));
    assert!(tulips.iter().all(|tulip| !tulip.calls().is_empty()));
    // A prompt that is left out of pooling still has its tokens' rows.
    let prompted = json!({"inputs": "a", "prompt_name": "query"});
    let rows: Vec<Vec<Vec<f32>>> = ivy.client.post("/embed_all", &prompted).value();
    assert_eq!(rows, [of(&[CLS, 56, 4, SEP])]);
    let calls: Vec<_> = tulips.iter().flat_map(Tulip::calls).collect();
    for call in calls {
        assert_eq!(call.message.head(), Head::Tokens);
        assert!(call.message.segments.is_empty());
        assert_eq!(call.message.outputs[0].normalize(), Normalize::Off);
    }
}

#[test]
fn similarity_is_the_cosine_with_each_of_the_others() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let cosine = |a: &[f32], b: &[f32]| -> f32 {
        let dot = |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let row = |ids: &[u32]| vector(ids, DIMENSIONS);
    let [a, b] = [row(&[CLS, 4, SEP]), row(&[CLS, 6, SEP])];
    let inputs = json!({"source_sentence": "a", "sentences": ["b", "a"]});
    for (path, body) in [
        ("/similarity", json!({"inputs": inputs})),
        ("/", json!({"inputs": inputs, "parameters": {}})),
        (
            "/similarity",
            json!({"inputs": inputs, "parameters": {"truncate": true, "prompt_name": null}}),
        ),
    ] {
        let got: Vec<f32> = ivy.client.post(path, &body).value();
        assert_eq!(got.len(), 2);
        assert!((got[0] - cosine(&a, &b)).abs() < 1e-6);
        assert!((got[1] - 1.0).abs() < 1e-6);
    }
    let prompted = json!({"inputs": inputs, "parameters": {"prompt_name": "query"}});
    ivy.client.post("/similarity", &prompted);
    let call = tulip.calls().pop().unwrap();
    assert_eq!(call.sequences()[0], [CLS, 56, 4, SEP]);
}

#[test]
fn answers_carry_teis_headers_beside_ours() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let long = "b ".repeat(500);
    for path in RUN_THE_MODEL {
        let answer = ivy.client.post(path, &json!({"inputs": ["a é", long]}));
        assert_eq!(answer.status, 200);
        for (name, value) in [
            ("x-compute-type", "cpu"),
            ("x-compute-characters", "1003"),
            ("x-compute-tokens", "132"),
            ("x-queue-time", "0"),
            ("x-inference-time", "0"),
            ("x-flowerbed-truncated", "1"),
            ("x-flowerbed-queue-us", "11"),
            ("x-flowerbed-step-us", "22"),
            ("x-flowerbed-space", model::SPACE),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path} {name}");
        }
        for name in ["x-compute-time", "x-total-time", "x-tokenization-time"] {
            let milliseconds: u64 = answer.header(name).unwrap().parse().unwrap();
            assert!(milliseconds < 20_000);
        }
        assert_eq!(answer.header("x-request-id").unwrap().len(), 32);
    }
    tulip.change(|behaviour| behaviour.info.device = "cuda:0".to_owned());
    let ivy = Ivy::over(&[&tulip]);
    let answer = ivy.client.post("/embed", &json!({"inputs": [[4, 5, 6]]}));
    assert_eq!(answer.header("x-compute-type"), Some("gpu+optimized"));
    assert_eq!(answer.header("x-compute-characters"), Some("3"));
}

#[test]
fn tokens_are_listed_and_their_ids_give_the_vector_of_the_text() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let special = |id: u32, text: &str| json!({"id": id, "text": text, "special": true, "start": null, "stop": null});
    let piece = |id: u32, text: &str, start: u32, stop: u32| json!({"id": id, "text": text, "special": false, "start": start, "stop": stop});
    let answer = ivy
        .client
        .post("/tokenize", &json!({"inputs": "é Flowerbed"}));
    let expected = [
        special(CLS, "[CLS]"),
        piece(12, "é", 0, 1),
        piece(57, "Flower", 2, 8),
        piece(58, "bed", 8, 11),
        special(SEP, "[SEP]"),
    ];
    assert_eq!(answer.json(), json!([expected]));
    let bare = json!({"inputs": ["a", ""], "add_special_tokens": false, "prompt_name": "query"});
    let bare = ivy.client.post("/tokenize", &bare).json();
    let the = piece(56, "the", 0, 3);
    assert_eq!(bare, json!([[the, piece(4, "a", 4, 5)], [the]]));
    let ids: Vec<u64> = expected
        .iter()
        .map(|token| token["id"].as_u64().unwrap())
        .collect();
    assert_eq!(
        vectors(&ivy.client.post("/embed", &json!({"inputs": ids}))),
        vectors(&ivy.client.post("/embed", &json!({"inputs": "é Flowerbed"})))
    );
    // A text that would be cut is listed whole.
    let long = ivy
        .client
        .post("/tokenize", &json!({"inputs": "a ".repeat(500)}));
    assert_eq!(long.json()[0].as_array().unwrap().len(), 502);
}

#[test]
fn ids_are_decoded() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let ids = [CLS, 4, 6, SEP];
    for (body, texts) in [
        (json!({"ids": ids}), json!(["a b"])),
        (json!({"ids": [ids, [57]]}), json!(["a b", "flower"])),
        (
            json!({"ids": ids, "skip_special_tokens": false}),
            json!(["[CLS] a b [SEP]"]),
        ),
    ] {
        assert_eq!(ivy.client.post("/decode", &body).json(), texts);
    }
}

#[test]
fn tokenize_and_decode_need_no_worker() {
    let address = Tulip::start().die();
    let ivy = Ivy::with(&[], |config| config["workers"] = json!([address]));
    let answer = ivy.client.post("/tokenize", &json!({"inputs": "a"}));
    assert_eq!(answer.status, 200);
    assert_eq!(
        ivy.client.post("/decode", &json!({"ids": [4]})).json(),
        json!(["a"])
    );
}

#[test]
fn info_tells_the_model_its_space_and_the_limits() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let info = ivy.client.get("/info").json();
    let expected = json!({
        "model_id": model::ID, "model_sha": "abc123", "model_dtype": "float32",
        "served_model_name": model::ID, "model_type": {"embedding": {"pooling": "mean"}},
        "max_input_length": 128, "max_batch_tokens": 512, "max_batch_requests": 64,
        "max_client_batch_size": 2048, "auto_truncate": true, "tokenization_workers": 2,
        "sha": null, "docker_label": null, "version": env!("CARGO_PKG_VERSION"),
        "space": model::SPACE, "revision": "abc123", "weights_sha256": "weights",
        "tokenizer_sha256": model::tokenizer_sha256(), "dimensions": DIMENSIONS,
        "max_body_bytes": 33_554_432, "prompts": ["query"], "truncation_direction": "right",
    });
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(info[field], *value, "{field}");
    }
    assert!(info["max_concurrent_requests"].as_u64().unwrap() > 0);
}

#[test]
fn op_02_ping_and_root_tell_whether_a_request_would_be_answered() {
    let address = Tulip::start().die();
    let ivy = Ivy::with(&[], |config| config["workers"] = json!([address]));
    for path in ["/", "/ping", "/info"] {
        let answer = ivy.client.get(path);
        assert_eq!(answer.status, 503);
        assert_eq!(answer.tei_error().1, "Unhealthy");
        assert!(answer.header("retry-after").is_some());
    }
    let refused = ivy.client.post("/embed", &json!({"inputs": "a"}));
    assert_eq!(
        (refused.status, refused.tei_error().1.as_str()),
        (503, "Unhealthy")
    );
    let _late = Tulip::start_at(&address, Behaviour::default());
    ivy.await_ready();
    for path in ["/", "/ping"] {
        let answer = ivy.client.get(path);
        assert_eq!((answer.status, answer.body.len()), (200, 0));
    }
}

#[test]
fn a_model_without_the_head_is_a_424_that_says_so() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let rerank = json!({"query": "a", "texts": ["b"]});
    for path in ["/rerank", "/predict", "/embed_sparse"] {
        let answer = ivy.client.post(path, &rerank);
        assert_eq!(answer.status, 424);
        let (message, kind) = answer.tei_error();
        assert_eq!(kind, "Backend");
        assert!(
            message.contains(path) && message.contains(model::ID),
            "{message}"
        );
    }
    tulip.change(|behaviour| behaviour.info.heads = vec![Head::Embed.into()]);
    let ivy = Ivy::over(&[&tulip]);
    let answer = ivy.client.post("/embed_all", &json!({"inputs": "a"}));
    assert_eq!(
        (answer.status, answer.tei_error().1.as_str()),
        (424, "Backend")
    );
    assert!(tulip.calls().is_empty());
}

#[test]
fn nu_03_what_the_engine_fails_at_names_the_input_in_the_callers_words() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    let texts = json!({"inputs": ["a", "b", "c"]});
    let comparison = json!({"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}});
    let ask = |path: &str, body: &Value| {
        let answer = ivy.client.post(path, body);
        assert_eq!(answer.status, 424);
        let (message, kind) = answer.tei_error();
        assert_eq!(kind, "Backend");
        message
    };
    tulip.change(|behaviour| behaviour.bad_row = Some(1));
    assert!(ask("/embed", &texts).starts_with("inputs[1] "));
    assert!(
        ask("/embed_all", &texts).starts_with("inputs[0] "),
        "its second token"
    );
    assert!(ask("/similarity", &comparison).starts_with("inputs.sentences[0] "));
    tulip.change(|behaviour| behaviour.bad_row = Some(0));
    assert!(ask("/similarity", &comparison).starts_with("inputs.source_sentence "));
    let refusal = Error::new(ErrorKind::EngineFailed, "this sequence failed").at_index(2);
    tulip.change(|behaviour| behaviour.error = Some(refusal));
    assert!(ask("/embed", &texts).starts_with("inputs[2] failed"));
    assert!(ask("/similarity", &comparison).starts_with("inputs.sentences[1] failed"));
    tulip.change(|behaviour| {
        behaviour.error = None;
        behaviour.rows_missing = 1;
    });
    for (path, body) in [("/embed", &texts), ("/embed_all", &texts)] {
        let answer = ivy.client.post(path, body);
        assert_eq!(
            (answer.status, answer.tei_error().1.as_str()),
            (500, "Backend")
        );
    }
}
