//! The JSON of OpenAI's dialect beside the vectors.

use serde::Serialize;

/// A name out of a request is repeated in an error only this far.
const MAX_ECHO_CHARS: usize = 64;

/// How vectors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A JSON list of numbers.
    Float,
    /// Little-endian float32 in base64.
    Base64,
    /// No JSON: little-endian float32, row after row.
    Bytes,
}

/// `usage` of an answer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: usize,
    pub(crate) total_tokens: usize,
}

impl Usage {
    pub(crate) fn of(num_tokens: usize) -> Self {
        Self {
            prompt_tokens: num_tokens,
            total_tokens: num_tokens,
        }
    }
}

/// The body of `GET /v1/models`.
#[derive(Debug, Serialize)]
pub(crate) struct ModelList<'a> {
    pub(crate) object: &'static str,
    pub(crate) data: [ModelEntry<'a>; 1],
}

/// One served model.
#[derive(Debug, Serialize)]
pub(crate) struct ModelEntry<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) owned_by: &'static str,
}

/// `name` for an error message, cut if it is long.
pub(crate) fn echo(name: &str) -> String {
    name.chars().take(MAX_ECHO_CHARS).collect()
}
