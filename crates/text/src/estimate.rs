//! A lower bound of a text's tokens, from a glance at its bytes: what is refused for it would have
//! been refused after tokenizing, too.
//!
//! The argument: where a tokenizer splits at every space, and no added token holds white space, two
//! words never share a token, and a word with an ASCII letter or digit has at least one.

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::Encoder;
use crate::locality::Locality;

/// Of each text no more bytes are looked at, for each token that it may have.
const BYTES_PER_TOKEN: usize = 8;
const EXTRA_BYTES: usize = 64;

impl Encoder {
    /// `text` has at least so many tokens once it is cut to the model's length.
    #[must_use]
    pub fn min_tokens(&self, text: &str) -> usize {
        let room = self.room();
        let num_words = if self.has_countable_words {
            count_words(text.as_bytes(), room)
        } else {
            0
        };
        num_words + self.frame.len()
    }
}

/// Whether the argument holds for this tokenizer.json.
pub(crate) fn has_countable_words(
    root: &Value,
    tokenizer: &Tokenizer,
    locality: Option<Locality>,
) -> bool {
    let Some(locality) = locality else {
        return false;
    };
    let added = root["added_tokens"].as_array();
    let is_one_word = |token: &Value| {
        token["content"].as_str().is_some_and(|content| {
            !content.chars().any(char::is_whitespace)
                && (content.is_ascii() || !locality.splits_ideographs())
        })
    };
    let gives_an_id = |c: char| {
        let encoding = tokenizer.encode_fast(c.to_string(), false);
        encoding.is_ok_and(|encoding| !encoding.is_empty())
    };
    drops_nothing(&root["model"])
        && added.is_none_or(|tokens| tokens.iter().all(is_one_word))
        && ('0'..='9')
            .chain('a'..='z')
            .chain('A'..='Z')
            .all(gives_an_id)
}

/// Whether a character that gives an id alone gives one at any place of a word. BPE without an
/// unknown token drops what its vocabulary lacks.
fn drops_nothing(model: &Value) -> bool {
    let is_empty = |name: &str| model[name].as_str().is_none_or(str::is_empty);
    model["type"] != "BPE"
        || !is_empty("unk_token")
        || (is_empty("continuing_subword_prefix") && is_empty("end_of_word_suffix"))
}

/// Words with an ASCII letter or digit that no mark after it can change; `limit` at most.
fn count_words(text: &[u8], limit: usize) -> usize {
    let end = text.len().min(BYTES_PER_TOKEN * limit + EXTRA_BYTES);
    let (mut num_words, mut is_counted) = (0, false);
    for (at, byte) in text[..end].iter().enumerate() {
        if *byte == b' ' {
            is_counted = false;
        } else if !is_counted
            && byte.is_ascii_alphanumeric()
            && text.get(at + 1).is_none_or(u8::is_ascii)
        {
            is_counted = true;
            num_words += 1;
            if num_words == limit {
                break;
            }
        }
    }
    num_words
}
