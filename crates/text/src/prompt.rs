//! Prompts: text put before an input, and how many of its tokens pooling leaves out.

use std::collections::BTreeMap;

use crate::{EncodeError, Encoder, LoadError};

/// Text put before an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub(crate) text: String,
    /// Tokens at a sequence's start that are left out of pooling.
    pub(crate) num_unpooled: usize,
}

/// The prompts of the encoder's settings, by name.
pub(crate) fn measure(encoder: &Encoder) -> Result<BTreeMap<String, Prompt>, LoadError> {
    let named = encoder.settings().prompts.iter().map(|(name, text)| {
        let num_unpooled = num_unpooled(encoder, text).map_err(|error| LoadError::Settings {
            field: "prompts",
            reason: format!("{name:?}: {error}"),
        })?;
        Ok((
            name.clone(),
            Prompt {
                text: text.clone(),
                num_unpooled,
            },
        ))
    });
    named.collect()
}

/// sentence-transformers' rule: the tokens of the prompt alone, its trailing special token not
/// counted.
fn num_unpooled(encoder: &Encoder, text: &str) -> Result<usize, EncodeError> {
    if encoder.settings().pool_prompt || text.is_empty() {
        return Ok(0);
    }
    let alone = encoder.encode(text, None, encoder.truncation(true, None))?;
    let ends_special = alone.ids.last().is_some_and(|id| encoder.is_special(*id));
    Ok(alone.ids.len() - usize::from(ends_special))
}
