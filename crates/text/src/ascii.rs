//! BERT's WordPiece for ASCII text, in one pass over its bytes: the library's normalizer, pre-tokenizer and model
//! copy every word several times, which was nine tenths of what the gateway computed.
//!
//! The argument: in ASCII text BERT's normalizer drops control characters, makes white space of tab, line feed and
//! carriage return, and lowers letters; accents and ideographs there are none. Its pre-tokenizer splits at white space
//! and makes a word of each punctuation mark. What an added token might match is left to the library: its first
//! character, a mark that no normalizer makes, ends the attempt. Other tokenizers have no such path.

use std::collections::HashMap;

use serde_json::Value;

type Pieces = HashMap<Box<[u8]>, u32>;

/// What a byte of a text does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    InWord,
    Space,
    Mark,
    Dropped,
    /// Not for this path.
    Foreign,
}

/// The tokenizer.
#[derive(Debug)]
pub(crate) struct AsciiWordPiece {
    classes: [Class; 256],
    is_lowered: bool,
    /// Pieces at the start of a word, and after it.
    first: Pieces,
    next: Pieces,
    /// Bytes of the longest piece.
    longest: usize,
    max_word_bytes: usize,
    unknown: u32,
}

impl AsciiWordPiece {
    /// `None` where the argument does not hold for this tokenizer.json.
    pub(crate) fn of(root: &Value) -> Option<Self> {
        let (normalizer, model) = (&root["normalizer"], &root["model"]);
        let is_bert = normalizer["type"] == "BertNormalizer"
            && normalizer["clean_text"] == true
            && root["pre_tokenizer"]["type"] == "BertPreTokenizer"
            && model["type"] == "WordPiece";
        if !is_bert {
            return None;
        }
        let mut classes = std::array::from_fn(class_of);
        for token in root["added_tokens"].as_array().into_iter().flatten() {
            match token["content"].as_str()?.as_bytes() {
                [mark, ..] if mark.is_ascii_punctuation() => {
                    classes[usize::from(*mark)] = Class::Foreign;
                }
                _ => return None,
            }
        }
        let prefix = model["continuing_subword_prefix"].as_str()?;
        let (mut first, mut next) = (Pieces::new(), Pieces::new());
        for (piece, id) in model["vocab"].as_object()? {
            let id = u32::try_from(id.as_u64()?).ok()?;
            if let Some(rest) = piece.strip_prefix(prefix) {
                next.insert(rest.as_bytes().into(), id);
            }
            first.insert(piece.as_bytes().into(), id);
        }
        Some(Self {
            classes,
            is_lowered: normalizer["lowercase"].as_bool()?,
            longest: first.keys().map(|piece| piece.len()).max()?,
            max_word_bytes: usize::try_from(model["max_input_chars_per_word"].as_u64()?).ok()?,
            unknown: *first.get(model["unk_token"].as_str()?.as_bytes())?,
            first,
            next,
        })
    }

    /// The ids of a text, or at least the first `limit` of them; `None` for the library.
    pub(crate) fn ids(&self, text: &str, limit: usize) -> Option<Vec<u32>> {
        let mut ids = Vec::new();
        let mut word = Vec::new();
        for &byte in text.as_bytes() {
            match self.classes[usize::from(byte)] {
                Class::InWord if self.is_lowered => word.push(byte.to_ascii_lowercase()),
                Class::InWord => word.push(byte),
                Class::Space => self.add(&mut word, &mut ids),
                Class::Mark => {
                    self.add(&mut word, &mut ids);
                    word.push(byte);
                    self.add(&mut word, &mut ids);
                }
                Class::Dropped => {}
                Class::Foreign => return None,
            }
            if ids.len() >= limit {
                return Some(ids);
            }
        }
        self.add(&mut word, &mut ids);
        Some(ids)
    }

    /// Takes a word, which may be empty: the longest piece that it begins with, and so on; one that cannot be made of
    /// pieces is unknown as a whole.
    fn add(&self, word: &mut Vec<u8>, ids: &mut Vec<u32>) {
        let num_before = ids.len();
        let mut rest = &word[..];
        let mut is_known = rest.len() <= self.max_word_bytes;
        while is_known && !rest.is_empty() {
            let pieces = if rest.len() == word.len() {
                &self.first
            } else {
                &self.next
            };
            let longest = rest.len().min(self.longest);
            let found = (1..=longest)
                .rev()
                .find_map(|len| pieces.get(&rest[..len]).map(|id| (len, *id)));
            match found {
                Some((len, id)) => {
                    ids.push(id);
                    rest = &rest[len..];
                }
                None => is_known = false,
            }
        }
        if !is_known {
            ids.truncate(num_before);
            ids.push(self.unknown);
        }
        word.clear();
    }
}

fn class_of(index: usize) -> Class {
    match u8::try_from(index) {
        Ok(b' ' | b'\t' | b'\n' | b'\r') => Class::Space,
        Ok(byte) if byte.is_ascii_control() => Class::Dropped,
        Ok(byte) if byte.is_ascii_punctuation() => Class::Mark,
        Ok(byte) if byte.is_ascii() => Class::InWord,
        _ => Class::Foreign,
    }
}
