//! The inputs of a request to sequences: texts in parallel, token arrays checked.

use std::sync::Arc;

use flowerbed_protocol::{Error, ErrorKind};
use flowerbed_text::{EncodeError, Encoder, Sequence};
use rayon::prelude::*;

use crate::compute::{Compute, IsAbandoned};
use crate::error::internal;
use crate::input::{Inputs, TOKEN_HINT, at};

/// How inputs are encoded.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) prompt_name: Option<String>,
    pub(crate) truncate: bool,
    /// Rows of the embedding matrix.
    pub(crate) vocab_rows: u32,
}

/// One sequence an input, in order; the error of the first bad input otherwise.
pub(crate) async fn tokenize(
    compute: &Compute,
    encoder: &Arc<Encoder>,
    inputs: Inputs,
    options: Options,
) -> Result<Vec<Sequence>, Error> {
    let encoder = Arc::clone(encoder);
    match inputs {
        Inputs::Texts(_) => {
            let work = inputs.work();
            let Inputs::Texts(texts) = inputs else {
                return Ok(Vec::new());
            };
            compute
                .run(work, move |is_abandoned| {
                    encode(&encoder, &texts, &options, is_abandoned)
                })
                .await?
        }
        Inputs::Tokens(arrays) => accept(&encoder, arrays, &options),
    }
}

fn encode(
    encoder: &Encoder,
    texts: &[String],
    options: &Options,
    is_abandoned: IsAbandoned<'_>,
) -> Result<Vec<Sequence>, Error> {
    let prompt = encoder
        .prompt(options.prompt_name.as_deref())
        .map_err(|known| unknown_prompt(options.prompt_name.as_deref(), &known))?;
    let encode_one = |text: &String| {
        if is_abandoned() {
            return Err(EncodeError::Empty);
        }
        encoder.encode(text, prompt, options.truncate)
    };
    let results: Vec<_> = match texts {
        [text] => vec![encode_one(text)],
        texts => texts.par_iter().map(encode_one).collect(),
    };
    in_order(results)
}

fn accept(
    encoder: &Encoder,
    arrays: Vec<Vec<u32>>,
    options: &Options,
) -> Result<Vec<Sequence>, Error> {
    if options.prompt_name.is_some() {
        let message = "a prompt is text: it cannot be put before token arrays";
        return Err(Error::invalid("prompt_name", message));
    }
    in_order(
        arrays
            .into_iter()
            .map(|ids| encoder.accept(ids, options.vocab_rows, options.truncate)),
    )
}

fn in_order(
    results: impl IntoIterator<Item = Result<Sequence, EncodeError>>,
) -> Result<Vec<Sequence>, Error> {
    results
        .into_iter()
        .enumerate()
        .map(|(index, result)| result.map_err(|error| refused(index, &error)))
        .collect()
}

fn refused(index: usize, error: &EncodeError) -> Error {
    match error {
        EncodeError::Empty => at(
            index,
            "has no tokens: the text is empty and the model adds none of its own",
        ),
        EncodeError::OnlyPrompt => at(
            index,
            "has no tokens beside its prompt, and the prompt is not pooled",
        ),
        EncodeError::TooLong { num_tokens, limit } => at(
            index,
            format_args!(
                "has {num_tokens} tokens, the limit is {limit}: shorten it, or leave truncate on"
            ),
        ),
        EncodeError::TooManyBytes { num_bytes, limit } => Error {
            kind: ErrorKind::TooLarge,
            ..at(
                index,
                format_args!(
                    "has {num_bytes} bytes, the limit is {limit} for a text that cannot be cut at \
                     spaces, or with truncate off: split it"
                ),
            )
        },
        EncodeError::IdOutOfRange {
            position,
            id,
            vocab_rows,
        } => at(
            index,
            format_args!(
                "is no token array of this model: item {position} is {id}, ids are below \
                 {vocab_rows}; {TOKEN_HINT}"
            ),
        ),
        EncodeError::Tokenizer(reason) => internal(reason),
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
        format!("no prompt is named {name:?}; known are {known}"),
    )
}
