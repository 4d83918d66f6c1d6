//! What can go wrong while a tokenizer is loaded or a text is encoded.

use std::path::PathBuf;

/// A tokenizer that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// File asked for.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is another one than the model's worker uses.
    #[error("{path} has sha256 {found}, expected {expected}")]
    Digest {
        /// File read.
        path: PathBuf,
        /// Digest of what was read.
        found: String,
        /// Digest asked for.
        expected: String,
    },
    /// The file is no tokenizer.json that the library understands.
    #[error("not a usable tokenizer.json: {0}")]
    Format(String),
    /// The text settings contradict themselves or the tokenizer.
    #[error("{field}: {reason}")]
    Settings {
        /// Setting at fault.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

/// An input that gives no sequence. Messages hold nothing of the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Neither the text nor the model's special tokens give an id.
    #[error("the input has no tokens")]
    Empty,
    /// With the prompt's tokens left out, no token is left to pool.
    #[error("nothing but the prompt is left to embed")]
    OnlyPrompt,
    /// Too many tokens, and truncation is off.
    #[error("the input has {num_tokens} tokens, the model takes {limit}")]
    TooLong {
        /// Special tokens included.
        num_tokens: usize,
        /// Special tokens included.
        limit: usize,
    },
    /// The text cannot be cut before it is tokenized, and is too long to be tokenized whole.
    #[error("the input has {num_bytes} bytes, at most {limit} can be read at once")]
    TooManyBytes {
        /// UTF-8, prompt included.
        num_bytes: usize,
        /// UTF-8.
        limit: usize,
    },
    /// The model has no such token.
    #[error("token id {id} at position {position} is not below {vocab_rows}")]
    IdOutOfRange {
        /// In the token array.
        position: usize,
        /// As sent.
        id: u32,
        /// Rows of the embedding matrix.
        vocab_rows: u32,
    },
    /// The tokenizer has no such token.
    #[error("token id {id} at position {position} is no token of this model")]
    UnknownId {
        /// In the token array.
        position: usize,
        /// As sent.
        id: u32,
    },
    /// The tokenizer itself failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
}
