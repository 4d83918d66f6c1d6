//! The lower bound of a text's tokens is one, and near enough to be of use.

#![allow(missing_docs, reason = "tests")]

mod support;

use flowerbed_text::EncodeError;
use proptest::prelude::*;
use serde_json::json;
use support::{CUT, byte_level, encoder, qwen, wordpiece};

#[test]
fn ordinary_words_count_up_to_the_models_length() {
    let bert = encoder(&wordpiece(), &json!({"max_length": 16}));
    for (text, least) in [
        ("", 2),
        ("   ", 2),
        ("the flower bed", 5),
        ("\u{1}\u{2} . - 漢字", 2),
        ("e\u{301} x", 3),
    ] {
        assert_eq!(bert.min_tokens(text), least, "{text:?}");
    }
    assert_eq!(bert.min_tokens(&"a ".repeat(1_000_000)), 16);
    let bare = encoder(&byte_level(), &json!({"max_length": 16}));
    assert_eq!(bare.min_tokens("the flower bed"), 3);
}

#[test]
fn nothing_is_counted_where_a_token_may_span_words_or_characters_are_dropped() {
    let mut spanning = wordpiece();
    spanning["added_tokens"][0]["content"] = json!("two words");
    let mut dropping = byte_level();
    dropping["model"]["continuing_subword_prefix"] = json!("##");
    dropping["model"]["merges"] = json!([]);
    let mut whole = byte_level();
    whole["pre_tokenizer"]["use_regex"] = json!(false);
    for (root, least) in [(spanning, 2), (dropping, 0), (whole, 0)] {
        let encoder = encoder(&root, &json!({"max_length": 16}));
        assert_eq!(encoder.min_tokens("two words here"), least);
    }
}

proptest! {
    #[test]
    fn no_text_has_fewer_tokens(
        text in "([a-zA-Z0-9]{1,5}|[ \t\n]{1,3}|[.,'-]|\\[SEP\\]|[éü\u{301}ß漢한👩\u{200d}\u{1}]|\\PC){0,30}",
        max_length in 3_usize..30,
    ) {
        for root in [wordpiece(), byte_level(), qwen()] {
            let encoder = encoder(&root, &json!({"max_length": max_length}));
            let num_tokens = match encoder.encode(&text, None, CUT) {
                Ok(sequence) => sequence.ids.len(),
                Err(error) => {
                    prop_assert_eq!(error, EncodeError::Empty);
                    0
                }
            };
            prop_assert!(encoder.min_tokens(&text) <= num_tokens);
        }
    }
}
