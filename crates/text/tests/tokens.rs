//! The tokens that callers are shown are those that the model runs.

#![allow(missing_docs, reason = "tests")]

mod support;

use flowerbed_text::{EncodeError, TextToken};
use proptest::prelude::*;
use serde_json::json;
use support::{CUT, byte_level, encoder, qwen, wordpiece};

#[test]
fn a_token_has_its_id_its_piece_of_text_and_its_place_in_characters() {
    let encoder = encoder(
        &wordpiece(),
        &json!({"max_length": 8, "prompts": {"query": "query: "}}),
    );
    let token = |id, text: &str, special, span| TextToken {
        id,
        text: text.to_owned(),
        special,
        span,
    };
    let prompt = encoder.prompt(Some("query")).unwrap();
    assert_eq!(
        encoder.tokens("Flowerbed É", prompt, true).unwrap(),
        [
            token(2, "[CLS]", true, None),
            token(60, "query", false, Some((0, 5))),
            token(61, ":", false, Some((5, 6))),
            token(57, "Flower", false, Some((7, 13))),
            token(58, "bed", false, Some((13, 16))),
            token(12, "É", false, Some((17, 18))),
            token(3, "[SEP]", true, None),
        ]
    );
    let bare = encoder.tokens("é a", None, false).unwrap();
    assert_eq!(bare[1], token(4, "a", false, Some((2, 3))));
    assert_eq!(encoder.tokens("", None, false), Ok(vec![]));
}

#[test]
fn ids_become_text_again_and_an_unknown_one_is_named() {
    let encoder = encoder(&byte_level(), &json!({"max_length": 64}));
    let text = "the thing, été 漢";
    let ids = encoder.encode(text, None, CUT).unwrap().ids;
    assert_eq!(encoder.decode(&ids, true).as_deref(), Ok(text));
    assert_eq!(
        encoder.decode(&[1, 900], true),
        Err(EncodeError::UnknownId {
            position: 1,
            id: 900
        })
    );
    assert_eq!(encoder.decode(&[], true), Err(EncodeError::Empty));
}

#[test]
fn a_text_that_is_too_long_to_be_read_whole_is_refused() {
    let encoder = encoder(&wordpiece(), &json!({"max_length": 8}));
    assert!(matches!(
        encoder.tokens(&"a ".repeat(1_100_000), None, true),
        Err(EncodeError::TooManyBytes { .. })
    ));
}

proptest! {
    #[test]
    fn in_06_the_tokens_shown_are_the_tokens_run(text in "[a-z ,.éÉ漢👩\u{200d}\u{301}\t]{0,60}") {
        for root in [wordpiece(), byte_level(), qwen()] {
            let encoder = encoder(&root, &json!({"max_length": 512}));
            let shown = encoder.tokens(&text, None, true).unwrap();
            let ids: Vec<u32> = shown.iter().map(|token| token.id).collect();
            match encoder.encode(&text, None, CUT) {
                Ok(sequence) => prop_assert_eq!(&ids, &sequence.ids),
                Err(error) => prop_assert_eq!((error, ids.len()), (EncodeError::Empty, 0)),
            }
            let characters: Vec<char> = text.chars().collect();
            for token in shown {
                if let Some((start, end)) = token.span {
                    prop_assert_eq!(token.text, characters[start..end].iter().collect::<String>());
                }
            }
        }
    }
}
