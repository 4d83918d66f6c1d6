//! The tokens of a text, one by one, and the text of token ids: for callers who want to see them.

use tokenizers::Encoding;

use crate::encoder::check_whole;
use crate::{EncodeError, Encoder, Prompt};

/// One token and the piece of text that it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextToken {
    /// As the model takes it.
    pub id: u32,
    /// The piece of text; of a special token, its name.
    pub text: String,
    /// Whether the model adds it around a text.
    pub special: bool,
    /// Start and end in characters of the prompt followed by the text; none for a special token.
    pub span: Option<(usize, usize)>,
}

impl Encoder {
    /// All tokens of `prompt` followed by `text`, never cut.
    ///
    /// # Errors
    /// If the text is too long to be tokenized whole, or cannot be tokenized.
    pub fn tokens(
        &self,
        text: &str,
        prompt: Option<&Prompt>,
        add_special_tokens: bool,
    ) -> Result<Vec<TextToken>, EncodeError> {
        let text = self
            .settings()
            .prepare(prompt.map_or("", |prompt| prompt.text.as_str()), text);
        check_whole(&text)?;
        let encoding = self
            .tokenizer
            .encode_char_offsets(&*text, add_special_tokens)
            .map_err(|error| EncodeError::Tokenizer(error.to_string()))?;
        Ok(pieces(&encoding, &text))
    }

    /// The text of token ids.
    ///
    /// # Errors
    /// If there are none, or one is no token of the tokenizer.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, EncodeError> {
        if ids.is_empty() {
            return Err(EncodeError::Empty);
        }
        let is_unknown = |id: &u32| self.tokenizer.id_to_token(*id).is_none();
        if let Some(position) = ids.iter().position(is_unknown) {
            return Err(EncodeError::UnknownId {
                position,
                id: ids[position],
            });
        }
        self.tokenizer
            .decode(ids, skip_special_tokens)
            .map_err(|error| EncodeError::Tokenizer(error.to_string()))
    }
}

fn pieces(encoding: &Encoding, text: &str) -> Vec<TextToken> {
    // Byte of each character, and of the end.
    let mut starts: Vec<usize> = text.char_indices().map(|(byte, _)| byte).collect();
    starts.push(text.len());
    let offsets = encoding.get_offsets();
    let names = encoding.get_tokens();
    let specials = encoding.get_special_tokens_mask();
    (0..encoding.len())
        .map(|at| {
            let special = specials[at] == 1;
            let span = (!special).then_some(offsets[at]);
            TextToken {
                id: encoding.get_ids()[at],
                text: span.map_or_else(
                    || names[at].clone(),
                    |(start, end)| text[starts[start]..starts[end]].to_owned(),
                ),
                special,
                span,
            }
        })
        .collect()
}
