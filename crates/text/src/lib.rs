//! Text to token ids: tokenizer, prompts, truncation.
//!
//! [`Encoder`] turns one input into the ids that a worker runs, exactly as the Hugging Face library
//! would with `truncation=True`. It knows nothing of requests, workers or the network, and it is
//! plain blocking code: the caller chooses the threads.

mod ascii;
mod encoder;
mod error;
mod estimate;
mod frame;
mod locality;
mod prompt;
mod settings;
mod tokens;

pub use encoder::{Encoder, Sequence};
pub use error::{EncodeError, LoadError};
pub use prompt::Prompt;
pub use settings::{TextSettings, Truncation, TruncationSide};
pub use tokens::TextToken;
