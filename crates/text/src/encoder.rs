//! One text, or one token array, to the ids that a worker runs.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use tokenizers::Tokenizer;

use crate::ascii::AsciiWordPiece;
use crate::estimate::has_countable_words;
use crate::frame::Frame;
use crate::locality::Locality;
use crate::prompt::{self, Prompt};
use crate::{EncodeError, LoadError, TextSettings, Truncation, TruncationSide};

/// Bytes of text tried first for each id that can be kept; English has about 4.5.
const BYTES_PER_ID: usize = 6;
/// A text that must be read whole and is longer than this is refused: the library takes some 150 bytes
/// of memory for each byte of text, and cannot be stopped.
const MAX_WHOLE_BYTES: usize = 2 * 1_024 * 1_024;
/// Added to the first try, so that a short limit does not fall below the safety margin.
const EXTRA_BYTES: usize = 1_024;

/// A model's tokenizer with its text settings. Shared by all threads.
#[derive(Debug)]
pub struct Encoder {
    pub(crate) tokenizer: Tokenizer,
    settings: TextSettings,
    pub(crate) frame: Frame,
    locality: Option<Locality>,
    ascii: Option<AsciiWordPiece>,
    pub(crate) has_countable_words: bool,
    prompts: BTreeMap<String, Prompt>,
}

/// The ids of one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Special tokens included.
    pub ids: Vec<u32>,
    /// First token that is pooled.
    pub segment_start: usize,
    /// Whether tokens were cut off.
    pub is_truncated: bool,
}

impl Encoder {
    /// Reads a tokenizer.json whose sha256 must be `sha256` (lower-case hex).
    ///
    /// # Errors
    /// If the file cannot be read, is another one, or cannot be used with these settings.
    pub fn from_file(path: &Path, sha256: &str, settings: TextSettings) -> Result<Self, LoadError> {
        let json = std::fs::read(path).map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
        let found = hex(&Sha256::digest(&json));
        if found != sha256 {
            let expected = sha256.to_owned();
            return Err(LoadError::Digest {
                path: path.to_owned(),
                found,
                expected,
            });
        }
        Self::from_json(&json, settings)
    }

    /// Takes the bytes of a tokenizer.json; its own truncation and padding are dropped.
    ///
    /// # Errors
    /// If it cannot be used with these settings.
    pub fn from_json(json: &[u8], settings: TextSettings) -> Result<Self, LoadError> {
        let format = |error: &dyn std::fmt::Display| LoadError::Format(error.to_string());
        let mut tokenizer = Tokenizer::from_bytes(json).map_err(|error| format(&error))?;
        tokenizer
            .with_truncation(None)
            .map_err(|error| format(&error))?;
        tokenizer.with_padding(None);
        let root = serde_json::from_slice(json).map_err(|error| format(&error))?;
        let frame = Frame::learn(&tokenizer)?;
        check(&settings, &frame)?;
        let locality = Locality::of(&root);
        let mut encoder = Self {
            has_countable_words: has_countable_words(&root, &tokenizer, locality),
            locality,
            ascii: AsciiWordPiece::of(&root),
            prompts: BTreeMap::new(),
            tokenizer,
            settings,
            frame,
        };
        encoder.prompts = prompt::measure(&encoder)?;
        Ok(encoder)
    }

    /// The text settings that it was made with.
    #[must_use]
    pub fn settings(&self) -> &TextSettings {
        &self.settings
    }

    /// The rule for over-long inputs: cut while `is_on`, at the side asked for, else the model's own.
    #[must_use]
    pub fn truncation(&self, is_on: bool, side: Option<TruncationSide>) -> Truncation {
        if is_on {
            Truncation::Cut(side.unwrap_or(self.settings.truncation_side))
        } else {
            Truncation::Refuse
        }
    }

    /// The prompt of that name, or the default one if `name` is none.
    ///
    /// # Errors
    /// With the known names, if there is no prompt of that name.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&Prompt>, Vec<&str>> {
        let Some(name) = name.or(self.settings.default_prompt.as_deref()) else {
            return Ok(None);
        };
        match self.prompts.get(name) {
            Some(prompt) => Ok(Some(prompt)),
            None => Err(self.prompts.keys().map(String::as_str).collect()),
        }
    }

    /// The ids of `prompt` followed by `text`, special tokens added.
    ///
    /// # Errors
    /// If there is nothing to embed, or too much of it while truncation is off.
    pub fn encode(
        &self,
        text: &str,
        prompt: Option<&Prompt>,
        truncation: Truncation,
    ) -> Result<Sequence, EncodeError> {
        let text = self
            .settings
            .prepare(prompt.map_or("", |prompt| prompt.text.as_str()), text);
        let room = self.room();
        if let Some(content) = self.ascii_ids(&text, truncation, room) {
            return self.fitted(&content, prompt, truncation);
        }
        if truncation == Truncation::Cut(TruncationSide::Right)
            && let Some(content) = self.leading_ids(&text, room)?
        {
            return self.sequence(&content, prompt, true);
        }
        check_whole(&text)?;
        let content = self.content_ids(&text)?;
        self.fitted(&content, prompt, truncation)
    }

    /// All ids of a text, cut if they are too many; what is cut off at the right may be incomplete.
    fn fitted(
        &self,
        content: &[u32],
        prompt: Option<&Prompt>,
        truncation: Truncation,
    ) -> Result<Sequence, EncodeError> {
        let room = self.room();
        if content.len() <= room {
            return self.sequence(content, prompt, false);
        }
        let kept = match truncation {
            Truncation::Refuse => {
                return Err(EncodeError::TooLong {
                    num_tokens: content.len() + self.frame.len(),
                    limit: self.settings.max_length,
                });
            }
            Truncation::Cut(TruncationSide::Right) => &content[..room],
            Truncation::Cut(TruncationSide::Left) => &content[content.len() - room..],
        };
        self.sequence(kept, prompt, true)
    }

    /// A token array as a sequence: used as it is, cut if it is too long. No special token is added
    /// or kept.
    ///
    /// # Errors
    /// If it is empty, names a token that the model has not, or is too long while truncation is off.
    pub fn accept(
        &self,
        mut ids: Vec<u32>,
        vocab_rows: u32,
        truncation: Truncation,
    ) -> Result<Sequence, EncodeError> {
        if let Some(position) = ids.iter().position(|&id| id >= vocab_rows) {
            return Err(EncodeError::IdOutOfRange {
                position,
                id: ids[position],
                vocab_rows,
            });
        }
        if ids.is_empty() {
            return Err(EncodeError::Empty);
        }
        let (num_tokens, limit) = (ids.len(), self.settings.max_length);
        if num_tokens > limit {
            match truncation {
                Truncation::Refuse => return Err(EncodeError::TooLong { num_tokens, limit }),
                Truncation::Cut(TruncationSide::Right) => ids.truncate(limit),
                Truncation::Cut(TruncationSide::Left) => drop(ids.drain(..num_tokens - limit)),
            }
        }
        Ok(Sequence {
            ids,
            segment_start: 0,
            is_truncated: num_tokens > limit,
        })
    }

    /// Ids that a text may have beside the special tokens.
    pub(crate) fn room(&self) -> usize {
        self.settings.max_length - self.frame.len()
    }

    /// The first `room` ids of a long text, read from a part of it. `None` if it has to be read
    /// whole: it is short, or no cut is known to keep those ids.
    fn leading_ids(&self, text: &str, room: usize) -> Result<Option<Vec<u32>>, EncodeError> {
        let Some(locality) = self.locality else {
            return Ok(None);
        };
        let mut max_bytes = room
            .saturating_mul(BYTES_PER_ID)
            .saturating_add(EXTRA_BYTES);
        while max_bytes < (text.len() / 2).min(MAX_WHOLE_BYTES) {
            if let Some(cut) = locality.cut(text, max_bytes) {
                let encoding = self
                    .tokenizer
                    .encode(&text[..cut.end], false)
                    .map_err(|error| EncodeError::Tokenizer(error.to_string()))?;
                // Text follows the cut, so `room` ids are cut off from more.
                let is_safe = |&(_, end): &(usize, usize)| end <= cut.safe_end;
                let (ids, offsets) = (encoding.get_ids(), encoding.get_offsets());
                if ids.len() > room && offsets[..=room].iter().all(is_safe) {
                    return Ok(Some(ids[..room].to_vec()));
                }
            }
            max_bytes = max_bytes.saturating_mul(2);
        }
        Ok(None)
    }

    /// All ids of an ordinary text, or enough of them; `None` where the library has to find them.
    fn ascii_ids(&self, text: &str, truncation: Truncation, room: usize) -> Option<Vec<u32>> {
        let limit = match truncation {
            Truncation::Cut(TruncationSide::Right) => room + 1,
            _ => usize::MAX,
        };
        let is_small = text.len() <= MAX_WHOLE_BYTES;
        let ascii = self.ascii.as_ref().filter(|_| is_small)?;
        ascii.ids(text, limit)
    }

    /// Whether the tokenizer treats `id` as a special token.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.tokenizer
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }

    /// All ids of a text, special tokens of the model excluded.
    fn content_ids(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        self.tokenizer
            .encode_fast(text, false)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| EncodeError::Tokenizer(error.to_string()))
    }

    fn sequence(
        &self,
        content: &[u32],
        prompt: Option<&Prompt>,
        is_truncated: bool,
    ) -> Result<Sequence, EncodeError> {
        let ids = self.frame.around(content);
        if ids.is_empty() {
            return Err(EncodeError::Empty);
        }
        let segment_start = prompt.map_or(0, |prompt| prompt.num_unpooled);
        if segment_start >= ids.len() {
            return Err(EncodeError::OnlyPrompt);
        }
        Ok(Sequence {
            ids,
            segment_start,
            is_truncated,
        })
    }
}

/// Refuses a text that is too long to be tokenized whole.
pub(crate) fn check_whole(text: &str) -> Result<(), EncodeError> {
    if text.len() <= MAX_WHOLE_BYTES {
        return Ok(());
    }
    Err(EncodeError::TooManyBytes {
        num_bytes: text.len(),
        limit: MAX_WHOLE_BYTES,
    })
}

fn check(settings: &TextSettings, frame: &Frame) -> Result<(), LoadError> {
    if settings.max_length <= frame.len() {
        return Err(LoadError::Settings {
            field: "max_length",
            reason: format!(
                "{} leaves no room beside {} special tokens",
                settings.max_length,
                frame.len()
            ),
        });
    }
    match &settings.default_prompt {
        Some(name) if !settings.prompts.contains_key(name) => Err(LoadError::Settings {
            field: "default_prompt",
            reason: format!("no prompt is named {name:?}"),
        }),
        _ => Ok(()),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encoder() -> Encoder {
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
        });
        let settings = json!({"max_length": 4});
        let settings = serde_json::from_value(settings).unwrap();
        Encoder::from_json(tokenizer.to_string().as_bytes(), settings).unwrap()
    }

    #[test]
    fn only_a_part_of_a_long_text_is_tokenized_and_only_where_it_has_spaces() {
        let spaced = "a ".repeat(5_000);
        assert_eq!(encoder().leading_ids(&spaced, 4), Ok(Some(vec![0; 4])));
        assert_eq!(encoder().leading_ids(&"a".repeat(10_000), 4), Ok(None));
    }
}
