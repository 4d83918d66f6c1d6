//! The text settings of a model: they are part of its space, so they cannot change under a gateway.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

/// Which end of an over-long text is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TruncationSide {
    /// The end is cut off.
    #[default]
    Right,
    /// The start is cut off.
    Left,
}

impl TruncationSide {
    /// As requests spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Right => "right",
            Self::Left => "left",
        }
    }
}

/// What becomes of an input that is longer than the model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// It is an error.
    Refuse,
    /// Tokens are cut off at this side.
    Cut(TruncationSide),
}

/// Mirrors `TextSettings` of `python/flowerbed/config.py`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSettings {
    /// Tokens a sequence, special tokens included.
    pub max_length: usize,
    /// Which end of an over-long text is cut off.
    #[serde(default)]
    pub truncation_side: TruncationSide,
    /// Lower-case before tokenizing.
    #[serde(default)]
    pub lowercase: bool,
    /// Remove white space at both ends before tokenizing.
    #[serde(default)]
    pub strip: bool,
    /// Text put before an input, by name.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt used when a request names none.
    #[serde(default)]
    pub default_prompt: Option<String>,
    /// False: the prompt's tokens are left out of pooling.
    #[serde(default = "yes")]
    pub pool_prompt: bool,
}

fn yes() -> bool {
    true
}

impl TextSettings {
    /// What the tokenizer sees of `prompt` followed by `text`: first joined, then stripped, then
    /// lower-cased, in sentence-transformers' order.
    pub(crate) fn prepare<'a>(&self, prompt: &str, text: &'a str) -> Cow<'a, str> {
        let joined = if prompt.is_empty() {
            Cow::Borrowed(text)
        } else {
            Cow::Owned([prompt, text].concat())
        };
        let stripped = match joined {
            joined if !self.strip => joined,
            Cow::Borrowed(text) => Cow::Borrowed(text.trim_matches(is_python_space)),
            Cow::Owned(text) => Cow::Owned(text.trim_matches(is_python_space).to_owned()),
        };
        if self.lowercase {
            // Letter by letter, as the library's Lowercase does: `str::to_lowercase` looks at
            // neighbours too, and gives another sigma at the end of a word.
            Cow::Owned(stripped.chars().flat_map(char::to_lowercase).collect())
        } else {
            stripped
        }
    }
}

/// Python's `str.strip` also removes the four ASCII separators that Unicode's `White_Space` lacks.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(json: &str) -> TextSettings {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_prompt_is_joined_before_white_space_is_removed() {
        let settings = settings(r#"{"max_length": 8, "strip": true, "lowercase": true}"#);
        assert_eq!(settings.prepare("", " \u{1c}A b\u{3000}\n"), "a b");
        assert_eq!(settings.prepare(" Query:  ", " X "), "query:   x");
    }

    #[test]
    fn an_unknown_setting_is_refused() {
        let error = serde_json::from_str::<TextSettings>(r#"{"max_length": 8, "max_lenght": 9}"#);
        assert!(error.unwrap_err().to_string().contains("max_lenght"));
    }
}
