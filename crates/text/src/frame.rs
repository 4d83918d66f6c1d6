//! The special tokens that a model's post-processor puts around one text.
//!
//! They are learned once, so that truncation works on plain ids: cutting an `Encoding` with the
//! library copies every piece that was cut off, and each copy is framed again.

use tokenizers::{Encoding, Token, Tokenizer};

use crate::LoadError;

/// Ids before and after the ids of one text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) before: Vec<u32>,
    pub(crate) after: Vec<u32>,
}

impl Frame {
    /// Learns the frame from what the post-processor makes of one marked token.
    pub(crate) fn learn(tokenizer: &Tokenizer) -> Result<Self, LoadError> {
        const MARK: u32 = u32::MAX;
        let marked = Encoding::from_tokens(vec![Token::new(MARK, "x".to_owned(), (0, 1))], 0);
        let framed = tokenizer
            .post_process(marked, None, true)
            .map_err(|error| LoadError::Format(error.to_string()))?;
        let mut parts = framed.get_ids().split(|&id| id == MARK);
        match (parts.next(), parts.next(), parts.next()) {
            (Some(before), Some(after), None) => Ok(Self {
                before: before.to_vec(),
                after: after.to_vec(),
            }),
            _ => Err(LoadError::Format(
                "the post-processor does not put the text once between special tokens".to_owned(),
            )),
        }
    }

    /// Special tokens of one text.
    pub(crate) fn len(&self) -> usize {
        self.before.len() + self.after.len()
    }

    /// Puts the frame around `content`.
    pub(crate) fn around(&self, content: &[u32]) -> Vec<u32> {
        [&self.before, content, &self.after].concat()
    }
}
