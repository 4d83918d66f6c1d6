//! Prompts are text put before an input; their tokens may be left out of pooling.

#![allow(missing_docs, reason = "tests")]

mod support;

use flowerbed_text::{EncodeError, Encoder, LoadError};
use serde_json::json;
use support::{CUT, byte_level, encoder, wordpiece};

#[test]
fn pa_10_a_prompt_gives_the_ids_of_the_prefix_typed_by_hand() {
    let encoder = encoder(
        &wordpiece(),
        &json!({
            "max_length": 32, "prompts": {"query": "query: ", "document": ""},
            "default_prompt": "query"
        }),
    );
    let prompt = encoder.prompt(Some("query")).unwrap();
    let prompted = encoder.encode("the flowerbed", prompt, CUT).unwrap();
    assert_eq!(
        prompted,
        encoder.encode("query: the flowerbed", None, CUT).unwrap()
    );
    assert_eq!(encoder.prompt(None).unwrap(), prompt);
    assert_eq!(prompted.segment_start, 0);
    assert_eq!(
        encoder.prompt(Some("qurey")),
        Err(vec!["document", "query"])
    );
}

#[test]
fn pa_10_an_unpooled_prompt_counts_its_tokens_without_the_trailing_special() {
    let settings = json!({"max_length": 8, "prompts": {"query": "query: "}, "pool_prompt": false});
    let bert = encoder(&wordpiece(), &settings);
    let prompt = bert.prompt(Some("query")).unwrap();
    // [CLS] query : | the [SEP]
    assert_eq!(bert.encode("the", prompt, CUT).unwrap().segment_start, 3);
    // An empty text leaves the trailing special token, as sentence-transformers does.
    assert_eq!(bert.encode("", prompt, CUT).unwrap().ids.len(), 4);
    let bare = encoder(&byte_level(), &settings);
    let prompt = bare.prompt(Some("query")).unwrap();
    assert_eq!(
        bare.encode("the the", prompt, CUT).unwrap().segment_start,
        7
    );
    // The space at the prompt's end is a token of its own only while nothing follows it: counted by
    // this rule, a single word is all prompt.
    assert_eq!(
        bare.encode("the", prompt, CUT),
        Err(EncodeError::OnlyPrompt)
    );
    assert_eq!(bare.encode("", prompt, CUT), Err(EncodeError::OnlyPrompt));
}

#[test]
fn settings_that_contradict_the_tokenizer_are_refused_with_their_field() {
    let load = |settings: serde_json::Value| {
        let settings = serde_json::from_value(settings).unwrap();
        Encoder::from_json(wordpiece().to_string().as_bytes(), settings).unwrap_err()
    };
    let field = |error: LoadError| match error {
        LoadError::Settings { field, .. } => field,
        other => panic!("{other}"),
    };
    assert_eq!(field(load(json!({"max_length": 2}))), "max_length");
    assert_eq!(
        field(load(json!({"max_length": 9, "default_prompt": "x"}))),
        "default_prompt"
    );
}
