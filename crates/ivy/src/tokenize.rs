//! The inputs of a request to sequences: texts in parallel, token arrays checked.

use std::sync::Arc;

use flowerbed_protocol::{Error, ErrorKind};
use flowerbed_text::{EncodeError, Encoder, Prompt, Sequence, Truncation};
use rayon::prelude::*;

use crate::compute::{Compute, IsAbandoned};
use crate::form::{Names, TOKEN_HINT, Takes};
use crate::input::Inputs;

/// How inputs are encoded.
#[derive(Clone, Debug)]
pub(crate) struct Encoding {
    pub(crate) names: Names,
    pub(crate) prompt_name: Option<String>,
    pub(crate) truncation: Truncation,
    /// Rows of the embedding matrix.
    pub(crate) vocab_rows: u32,
}

/// One sequence an input, in order; the error of the first bad input otherwise.
pub(crate) async fn tokenize(
    compute: &Compute,
    encoder: &Arc<Encoder>,
    inputs: Inputs,
    options: Encoding,
) -> Result<Vec<Sequence>, Error> {
    let encoder = Arc::clone(encoder);
    compute
        .run(inputs.work(), move |is_abandoned| match inputs {
            Inputs::Texts(texts) => encode(&encoder, &texts, &options, is_abandoned),
            Inputs::Tokens(arrays) => accept(&encoder, arrays, &options),
        })
        .await?
}

fn encode(
    encoder: &Encoder,
    texts: &[String],
    options: &Encoding,
    is_abandoned: IsAbandoned<'_>,
) -> Result<Vec<Sequence>, Error> {
    let prompt = prompt(encoder, options.prompt_name.as_deref())?;
    let encode_one = |text: &String| {
        if is_abandoned() {
            return Err(EncodeError::Empty);
        }
        encoder.encode(text, prompt, options.truncation)
    };
    let results: Vec<_> = match texts {
        [text] => vec![encode_one(text)],
        texts => texts.par_iter().map(encode_one).collect(),
    };
    in_order(options.names, results)
}

fn accept(
    encoder: &Encoder,
    arrays: Vec<Vec<u32>>,
    options: &Encoding,
) -> Result<Vec<Sequence>, Error> {
    if options.prompt_name.is_some() {
        let message = "prompt_name must be left out with token arrays: a prompt is text";
        return Err(Error::invalid("prompt_name", message));
    }
    in_order(
        options.names,
        arrays
            .into_iter()
            .map(|ids| encoder.accept(ids, options.vocab_rows, options.truncation)),
    )
}

/// The results of all inputs; the error of the first bad one otherwise.
pub(crate) fn in_order<T>(
    names: Names,
    results: impl IntoIterator<Item = Result<T, EncodeError>>,
) -> Result<Vec<T>, Error> {
    results
        .into_iter()
        .enumerate()
        .map(|(index, result)| result.map_err(|error| refused(names, index, &error)))
        .collect()
}

/// The prompt of that name, or the default one.
pub(crate) fn prompt<'a>(
    encoder: &'a Encoder,
    name: Option<&str>,
) -> Result<Option<&'a Prompt>, Error> {
    encoder
        .prompt(name)
        .map_err(|known| unknown_prompt(name, &known))
}

fn refused(names: Names, index: usize, error: &EncodeError) -> Error {
    match error {
        EncodeError::Empty => names.error(
            ErrorKind::EmptyInput,
            index,
            "has no tokens: it is empty and the model adds none of its own",
        ),
        EncodeError::OnlyPrompt => names.error(
            ErrorKind::EmptyInput,
            index,
            "has no tokens beside its prompt, and the prompt is not pooled",
        ),
        EncodeError::TooLong { num_tokens, limit } => names.at(
            index,
            format_args!(
                "has {num_tokens} tokens, the limit is {limit}: shorten it, or turn truncate on"
            ),
        ),
        EncodeError::TooManyBytes { num_bytes, limit } => names.error(
            ErrorKind::TooLarge,
            index,
            format_args!(
                "has {num_bytes} bytes, the limit is {limit} for a text that must be read whole: \
                 without spaces to cut at, with truncate off, or to be cut at the left; split it"
            ),
        ),
        EncodeError::IdOutOfRange {
            position,
            id,
            vocab_rows,
        } => names.at_id(
            index,
            *position,
            format_args!("must be below {vocab_rows}, not {id}; {TOKEN_HINT}"),
        ),
        EncodeError::UnknownId { position, id } => names.at_id(
            index,
            *position,
            format_args!(
                "must be a token of this model, not {id}; {}",
                Takes::Ids.token_hint()
            ),
        ),
        EncodeError::Tokenizer(reason) => {
            tracing::warn!(reason, "the tokenizer refuses a text");
            names.error(
                ErrorKind::Tokenizer,
                index,
                "cannot be read by the model's tokenizer",
            )
        }
    }
}

fn unknown_prompt(name: Option<&str>, known: &[&str]) -> Error {
    let name = crate::wire::echo(name.unwrap_or_default());
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Error::invalid(
        "prompt_name",
        format!("prompt_name: no prompt is named {name:?}; known are {known}"),
    )
}
