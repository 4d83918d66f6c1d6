//! Truncation keeps the ids that the Hugging Face library keeps.

#![allow(missing_docs, reason = "tests")]

mod support;

use flowerbed_text::{EncodeError, Truncation, TruncationSide};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{CUT, Oracle, byte_level, encoder, qwen, wordpiece};
use tokenizers::TruncationDirection::{Left, Right};

/// Words, runs of white space, marks that combine, special tokens typed by hand, scripts without
/// spaces.
fn texts(max_parts: usize) -> impl Strategy<Value = String> {
    let part = prop_oneof![
        5 => "[a-z]{1,9}",
        4 => Just(" ".to_owned()),
        1 => "[ \t\n\r\u{a0}\u{3000}]{1,4}",
        1 => "[.,!'\"-]{1,3}\n{0,2}",
        1 => Just("[SEP]".to_owned()),
        1 => "[éü\u{301}ß漢字テ한ﷺ👩\u{200d}]{1,3}",
        1 => "[0-9]{1,6}",
        1 => "\\PC{1,4}",
    ];
    prop::collection::vec(part, 0..max_parts).prop_map(|parts| parts.concat())
}

fn assert_same_as_the_library(root: &Value, text: &str, max_length: usize) {
    for (side, direction) in [("right", Right), ("left", Left)] {
        let settings = json!({"max_length": max_length, "truncation_side": side});
        let ours = encoder(root, &settings);
        let ours = ours.encode(text, None, ours.truncation(true, None));
        let theirs = Oracle::new(root, max_length, direction).ids(text);
        match ours {
            Ok(sequence) => assert_eq!(sequence.ids, theirs, "{side}"),
            Err(error) => assert_eq!((error, theirs), (EncodeError::Empty, vec![])),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn both_sides_keep_the_same_ids_as_the_library(text in texts(30), max_length in 3_usize..40) {
        for root in [wordpiece(), byte_level(), qwen()] {
            assert_same_as_the_library(&root, &text, max_length);
        }
    }

    #[test]
    fn a_long_text_cut_before_tokenizing_keeps_the_same_ids(
        text in texts(2_500), max_length in 3_usize..200,
    ) {
        for root in [wordpiece(), byte_level(), qwen()] {
            assert_same_as_the_library(&root, &text, max_length);
        }
    }
}

#[test]
fn lengths_around_the_limit_are_told_apart() {
    let encoder = encoder(&wordpiece(), &json!({"max_length": 5}));
    for (text, num_tokens) in [("a b", 4), ("a b c", 5), ("a b c d", 6)] {
        let sequence = encoder.encode(text, None, CUT).unwrap();
        assert_eq!(sequence.is_truncated, num_tokens > 5, "{text}");
        assert_eq!(sequence.ids.len(), num_tokens.min(5));
        let whole = encoder.encode(text, None, Truncation::Refuse);
        if num_tokens > 5 {
            assert_eq!(
                whole,
                Err(EncodeError::TooLong {
                    num_tokens,
                    limit: 5
                })
            );
        } else {
            assert_eq!(whole.unwrap(), sequence);
        }
    }
}

#[test]
fn a_long_text_is_reported_as_truncated_and_counted_whole_when_truncation_is_off() {
    let encoder = encoder(&wordpiece(), &json!({"max_length": 16}));
    let text = "the flower ".repeat(50_000);
    let sequence = encoder.encode(&text, None, CUT).unwrap();
    assert!(sequence.is_truncated);
    assert_eq!(sequence.ids.len(), 16);
    let error = encoder.encode(&text, None, Truncation::Refuse).unwrap_err();
    assert_eq!(
        error,
        EncodeError::TooLong {
            num_tokens: 100_002,
            limit: 16
        }
    );
}

#[test]
fn in_11_words_without_a_space_are_tokenized_like_any_other() {
    for text in ["a".repeat(40_000), "1".repeat(40_000), "漢".repeat(20_000)] {
        for root in [wordpiece(), byte_level(), qwen()] {
            assert_same_as_the_library(&root, &text, 64);
        }
    }
}

#[test]
fn an_empty_text_is_embedded_only_where_the_model_adds_special_tokens() {
    let bert = encoder(&wordpiece(), &json!({"max_length": 5}));
    assert_eq!(bert.encode("", None, CUT).unwrap().ids, [2, 3]);
    let bare = encoder(&byte_level(), &json!({"max_length": 5}));
    assert_eq!(bare.encode("", None, CUT), Err(EncodeError::Empty));
}

#[test]
fn pa_07_the_side_of_a_request_rules_over_the_models_own() {
    for own in ["left", "right"] {
        let settings = json!({"max_length": 4, "truncation_side": own});
        let encoder = encoder(&wordpiece(), &settings);
        for (asked, kept) in [
            (Some(TruncationSide::Right), [6, 8]),
            (Some(TruncationSide::Left), [8, 10]),
            (None, if own == "left" { [8, 10] } else { [6, 8] }),
        ] {
            let truncation = encoder.truncation(true, asked);
            let [first, second] = kept;
            let cut = encoder.encode("b c d", None, truncation).unwrap();
            assert_eq!(
                (cut.ids, cut.is_truncated),
                (vec![2, first, second, 3], true)
            );
            let array = encoder.accept(vec![9, 6, 8, 10, 9], 100, truncation);
            let expected = if asked.map_or(own == "left", |side| side == TruncationSide::Left) {
                [6, 8, 10, 9]
            } else {
                [9, 6, 8, 10]
            };
            assert_eq!(array.unwrap().ids, expected);
        }
        assert_eq!(
            encoder.truncation(false, Some(TruncationSide::Left)),
            Truncation::Refuse
        );
    }
}

#[test]
fn token_arrays_are_kept_as_they_are_and_cut_by_the_same_rule() {
    let encoder = encoder(&wordpiece(), &json!({"max_length": 3}));
    let whole = encoder.accept(vec![9, 8, 7], 10, Truncation::Refuse);
    assert_eq!(whole.unwrap().ids, [9, 8, 7]);
    let cut = encoder.accept(vec![9, 8, 7, 6], 10, CUT).unwrap();
    assert_eq!((cut.ids, cut.is_truncated), (vec![9, 8, 7], true));
    assert_eq!(
        encoder.accept(vec![9, 8, 7, 6], 10, Truncation::Refuse),
        Err(EncodeError::TooLong {
            num_tokens: 4,
            limit: 3
        })
    );
    assert_eq!(
        encoder.accept(vec![1, 10], 10, CUT),
        Err(EncodeError::IdOutOfRange {
            position: 1,
            id: 10,
            vocab_rows: 10
        })
    );
    assert_eq!(encoder.accept(vec![], 10, CUT), Err(EncodeError::Empty));
}
