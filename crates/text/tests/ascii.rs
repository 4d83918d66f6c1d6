//! ASCII texts have the library's ids, whatever stands in them, in every variant of BERT's tokenizer.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use flowerbed_text::{Truncation, TruncationSide};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{CUT, encoder, wordpiece};
use tokenizers::Tokenizer;

/// Uncased and cased; with added tokens of other kinds, a tight limit of a word, and control characters kept.
fn variants() -> Vec<Value> {
    let uncased = wordpiece();
    let change = |path: &str, value: Value| {
        let mut root = uncased.clone();
        if let Some(place) = root.pointer_mut(path) {
            *place = value;
        }
        root
    };
    let added = |content: &str, normalized: bool| {
        let mut token = uncased["added_tokens"][0].clone();
        token["content"] = json!(content);
        token["normalized"] = json!(normalized);
        token
    };
    vec![
        uncased.clone(),
        change("/normalizer/lowercase", json!(false)),
        change("/normalizer/strip_accents", json!(false)),
        change("/normalizer/clean_text", json!(false)),
        change("/model/max_input_chars_per_word", json!(3)),
        change("/added_tokens/0", added("-The", true)),
        change("/added_tokens/0", added("the flower", true)),
        change("/added_tokens/0", added("bed", false)),
    ]
}

fn expected(root: &Value, text: &str) -> Vec<u32> {
    let mut tokenizer: Tokenizer = serde_json::from_value(root.clone()).unwrap();
    tokenizer.with_truncation(None).unwrap();
    tokenizer.with_padding(None);
    let encoding = tokenizer.encode(text, true).unwrap();
    encoding.get_ids().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn ids_are_the_librarys(
        text in "(the|The|FLOWER|flowerbed|bed|bedding|query|[a-zA-Z]{1,6}|[0-9_]{1,3}|[ \t\n\r]{1,2}|\\[SEP\\]|\\[|[!-/:-@{-~]|[\u{0}-\u{7f}]|é|漢){0,24}",
        max_length in 3_usize..12,
    ) {
        for root in variants() {
            let all = expected(&root, &text);
            let whole = encoder(&root, &json!({"max_length": 1_000}));
            for truncation in [CUT, Truncation::Refuse, Truncation::Cut(TruncationSide::Left)] {
                prop_assert_eq!(&whole.encode(&text, None, truncation).unwrap().ids, &all);
            }
            let cut = encoder(&root, &json!({"max_length": max_length})).encode(&text, None, CUT).unwrap();
            prop_assert_eq!(cut.is_truncated, all.len() > max_length);
            if cut.is_truncated {
                prop_assert_eq!(&cut.ids[..max_length - 1], &all[..max_length - 1]);
            } else {
                prop_assert_eq!(&cut.ids, &all);
            }
        }
    }
}

#[test]
fn a_word_that_is_too_long_is_unknown() {
    let root = wordpiece();
    let limit = usize::try_from(root["model"]["max_input_chars_per_word"].as_u64().unwrap());
    let limit = limit.unwrap();
    let encoder = encoder(&root, &json!({"max_length": 1_000}));
    for length in [limit, limit + 1] {
        let text = format!("a {} b", "z".repeat(length));
        let ids = encoder.encode(&text, None, CUT).unwrap().ids;
        assert_eq!(ids, expected(&root, &text));
        assert_eq!(ids.len(), if length > limit { 5 } else { 4 + limit });
    }
}
