//! `POST /tokenize` and `/decode`: what the model's tokenizer makes of a text, and back.
//!
//! They need no worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use flowerbed_protocol::{Error as RequestError, ErrorKind, limits};
use flowerbed_text::{EncodeError, Encoder, TextToken};
use http::StatusCode;
use rayon::prelude::*;
use serde::Serialize;

use crate::app::App;
use crate::call::{Call, Received, answer};
use crate::compute::{IsAbandoned, Work};
use crate::context::Context;
use crate::error::{Error, json_bytes};
use crate::fields::Asked;
use crate::form::{DECODE, TOKENIZE};
use crate::input::Inputs;
use crate::tokenize::{in_order, prompt};

/// One token, as TEI's clients read it.
#[derive(Serialize)]
struct SimpleToken {
    id: u32,
    text: String,
    special: bool,
    /// In characters of the prompt and the text.
    start: Option<usize>,
    stop: Option<usize>,
}

impl From<TextToken> for SimpleToken {
    fn from(token: TextToken) -> Self {
        Self {
            id: token.id,
            text: token.text,
            special: token.special,
            start: token.span.map(|(start, _)| start),
            stop: token.span.map(|(_, stop)| stop),
        }
    }
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &TOKENIZE, async |call, received| {
        let work = received.asked.inputs.work();
        run(call, received, work, list_tokens).await
    })
    .await
}

/// `POST /decode`.
pub(crate) async fn decode(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    answer(app, context, request, &DECODE, async |call, received| {
        // An id becomes some four bytes of text.
        let work = Work::tokenizing([4 * received.asked.inputs.num_chars()]);
        run(call, received, work, decode_all).await
    })
    .await
}

async fn run(
    call: &Call,
    received: Received,
    work: Work,
    job: fn(&Encoder, Asked, IsAbandoned<'_>) -> Result<Bytes, RequestError>,
) -> Result<Response, Error> {
    let encoder = Arc::clone(&call.app.encoder);
    let Received { asked, held } = received;
    // An answer is some times longer than its request; it is written only if that much is free.
    call.check_answer(held.bytes.len())?;
    let body = call
        .app
        .compute
        .run(work, move |is_abandoned| {
            let body = job(&encoder, asked, is_abandoned);
            drop(held);
            body
        })
        .await??;
    Ok(json_bytes(StatusCode::OK, body))
}

fn list_tokens(
    encoder: &Encoder,
    asked: Asked,
    is_abandoned: IsAbandoned<'_>,
) -> Result<Bytes, RequestError> {
    let Asked {
        inputs,
        names,
        options,
    } = asked;
    let Inputs::Texts(texts) = inputs else {
        return Ok(Bytes::new());
    };
    let prompt = prompt(encoder, options.prompt_name.as_deref())?;
    let add_special_tokens = options.add_special_tokens.unwrap_or(true);
    let num_listed = AtomicUsize::new(0);
    let results: Vec<_> = texts
        .par_iter()
        .map(|text| {
            if is_abandoned() || num_listed.load(Ordering::Relaxed) > limits::MAX_LISTED_TOKENS {
                return Err(EncodeError::Empty);
            }
            let tokens = encoder.tokens(text, prompt, add_special_tokens)?;
            num_listed.fetch_add(tokens.len(), Ordering::Relaxed);
            Ok(tokens)
        })
        .collect();
    check_num_listed(num_listed.into_inner(), names.field())?;
    let tokens: Vec<Vec<SimpleToken>> = in_order(names, results)?
        .into_iter()
        .map(|tokens| tokens.into_iter().map(SimpleToken::from).collect())
        .collect();
    Ok(body(&tokens))
}

fn decode_all(
    encoder: &Encoder,
    asked: Asked,
    is_abandoned: IsAbandoned<'_>,
) -> Result<Bytes, RequestError> {
    let Asked {
        inputs,
        names,
        options,
    } = asked;
    check_num_listed(inputs.num_chars(), names.field())?;
    let Inputs::Tokens(arrays) = inputs else {
        return Ok(Bytes::new());
    };
    let skip_special_tokens = options.skip_special_tokens.unwrap_or(true);
    let texts = arrays.iter().map(|ids| {
        if is_abandoned() {
            return Err(EncodeError::Empty);
        }
        encoder.decode(ids, skip_special_tokens)
    });
    Ok(body(&in_order(names, texts)?))
}

fn check_num_listed(num_tokens: usize, field: &str) -> Result<(), RequestError> {
    let limit = limits::MAX_LISTED_TOKENS;
    if num_tokens <= limit {
        return Ok(());
    }
    let message = format!(
        "{field} has at least {num_tokens} tokens, the limit is {limit}: split the request"
    );
    Err(RequestError::new(ErrorKind::TooLarge, message).in_field(field))
}

fn body(value: &impl Serialize) -> Bytes {
    // Strings and numbers always serialize.
    serde_json::to_vec(value).unwrap_or_default().into()
}
