//! `POST /v1/embeddings`: one handler, for every form of input.
//!
//! Order of refusals: the body, then its meaning, then whether the gateway can take it now.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use flowerbed_protocol::v1::{Lane, ModelInfo};
use flowerbed_protocol::{CostModel, Error as RequestError, ErrorKind};
use flowerbed_text::Sequence;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::compute::{Compute, Work};
use crate::context::Context;
use crate::dispatch::{Ask, Dispatch, Rows};
use crate::error::{Error, json_bytes};
use crate::headers;
use crate::replica::{CallOptions, deadline_exceeded};
use crate::respond::Answer;
use crate::tokenize::{Options, tokenize};
use crate::wire::{EmbedRequest, Usage, echo};

const SPACE: HeaderName = HeaderName::from_static("x-flowerbed-space");
const QUEUE_US: HeaderName = HeaderName::from_static("x-flowerbed-queue-us");
const STEP_US: HeaderName = HeaderName::from_static("x-flowerbed-step-us");
const TRUNCATED: HeaderName = HeaderName::from_static("x-flowerbed-truncated");

/// The handler. Everything it starts ends with it.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(context): Extension<Context>,
    request: Request,
) -> Response {
    let longest = app.config.request_timeout;
    let timeout = headers::timeout(request.headers(), longest);
    let deadline = Instant::now() + *timeout.as_ref().unwrap_or(&longest);
    let asked = timeout.and_then(|_| {
        Ok(Asked {
            lane: headers::asked_lane(request.headers())?,
            options: CallOptions {
                deadline,
                traceparent: headers::traceparent(request.headers()),
            },
        })
    });
    let answered = Box::pin(embed(&app, &context, asked, request));
    let result = timeout_at(deadline, answered)
        .await
        .unwrap_or_else(|_| Err(Error::from(deadline_exceeded())));
    result.unwrap_or_else(|error| {
        if let Error::Request(error) = &error
            && error.kind.is_shed()
        {
            app.metrics.shed(error.kind);
        }
        error.into_response()
    })
}

/// What the headers ask.
struct Asked {
    lane: Option<Lane>,
    options: CallOptions,
}

async fn embed(
    app: &App,
    context: &Context,
    asked: Result<Asked, RequestError>,
    request: Request,
) -> Result<Response, Error> {
    let held = app.body_memory.read_json(request).await?;
    let asked = asked?;
    let request = parse(&app.compute, held.bytes.clone()).await?;
    check_model(app, request.model.as_deref())?;
    context.set_model(&app.config.model.id);
    let group = app.pool.group()?;
    let dimensions = dimensions(request.dimensions, &group.session.info)?;
    // Every input costs something: a queue that is full refuses before anything is tokenized.
    let least_cost = request.inputs.len() as u64;
    let best_lane = headers::embedding_lane(least_cost, asked.lane);
    drop(app.pool.admit(&group, best_lane, least_cost)?);

    let started = Instant::now();
    let options = Options {
        prompt_name: request.prompt_name,
        truncate: request.truncate,
        vocab_rows: group.session.info.vocab_rows,
    };
    let sequences = tokenize(&app.compute, &app.encoder, request.inputs, options).await?;
    drop(held);
    let num_tokens = sequences.iter().map(|sequence| sequence.ids.len()).sum();
    let num_truncated = sequences
        .iter()
        .filter(|sequence| sequence.is_truncated)
        .count();
    app.metrics
        .tokenized(started.elapsed(), num_tokens, num_truncated);

    let costs = costs(&sequences, &group.session.info);
    let cost = costs.iter().sum();
    let lane = headers::embedding_lane(cost, asked.lane);
    context.set_lane(headers::lane_name(lane));
    let _admitted = app.pool.admit(&group, lane, cost)?;
    let ask = Ask {
        dimensions,
        lane,
        options: asked.options,
    };
    let dispatch = Dispatch {
        pool: &app.pool,
        group: &group,
        ask,
    };
    let rows = dispatch.run(&sequences, &costs).await?;

    let mut headers = stats_headers(&rows);
    headers.insert(SPACE, HeaderValue::try_from(group.space()).unwrap_or(EMPTY));
    headers.insert(TRUNCATED, HeaderValue::from(num_truncated));
    let answer = Answer {
        model: app.config.model.id.clone(),
        format: request.format,
        dimensions: dimensions as usize,
        usage: Usage {
            prompt_tokens: num_tokens,
            total_tokens: num_tokens,
        },
    };
    let body = write(&app.compute, answer, rows).await?;
    Ok((headers, json_bytes(StatusCode::OK, body.into())).into_response())
}

const EMPTY: HeaderValue = HeaderValue::from_static("");

async fn parse(compute: &Compute, body: bytes::Bytes) -> Result<EmbedRequest, RequestError> {
    if Compute::is_small(body.len()) {
        return EmbedRequest::parse(&body);
    }
    compute
        .run(Work::Json, move |_| EmbedRequest::parse(&body))
        .await?
}

async fn write(
    compute: &Compute,
    answer: Answer,
    rows: Vec<Rows>,
) -> Result<Vec<u8>, RequestError> {
    let num_bytes = rows.iter().map(|rows| rows.data.len()).sum();
    if Compute::is_small(num_bytes) {
        return answer.write(&rows);
    }
    compute
        .run(Work::Json, move |_| answer.write(&rows))
        .await?
}

fn check_model(app: &App, name: Option<&str>) -> Result<(), RequestError> {
    let served = &app.config.model;
    match name {
        None => Ok(()),
        Some("") => Err(RequestError::invalid(
            "model",
            "model is empty: name one, or leave it out",
        )),
        Some(name) if served.answers_to(name) => Ok(()),
        Some(name) => {
            let message = format!(
                "there is no model {:?}; served is {}",
                echo(name),
                served.id
            );
            Err(RequestError::new(ErrorKind::NotFound, message).in_field("model"))
        }
    }
}

/// Floats a row. The native size is always served.
fn dimensions(asked: Option<u32>, info: &ModelInfo) -> Result<u32, RequestError> {
    let native = info.dimensions.max(1);
    let allowed = &info.allowed_dimensions;
    let Some(asked) = asked else {
        return Ok(native);
    };
    let is_served = asked == native
        || if allowed.is_empty() {
            asked <= native
        } else {
            allowed.contains(&asked)
        };
    if is_served {
        return Ok(asked);
    }
    let known = if allowed.is_empty() {
        format!("1 to {native}")
    } else {
        let listed: Vec<String> = allowed.iter().map(u32::to_string).collect();
        format!("{} and {native}", listed.join(", "))
    };
    let message = format!("dimensions is {asked}; {} gives {known}", info.id);
    Err(RequestError::invalid("dimensions", message))
}

fn costs(sequences: &[Sequence], info: &ModelInfo) -> Vec<u64> {
    let model = CostModel::new(info.attention_scale);
    sequences
        .iter()
        .map(|sequence| model.cost(sequence.ids.len() as u64))
        .collect()
}

/// The slowest chunk is what the caller waited for.
fn stats_headers(rows: &[Rows]) -> HeaderMap {
    let slowest =
        |time: fn(&Rows) -> u64| HeaderValue::from(rows.iter().map(time).max().unwrap_or(0));
    let mut headers = HeaderMap::new();
    headers.insert(QUEUE_US, slowest(|chunk| chunk.stats.queue_us));
    headers.insert(STEP_US, slowest(|chunk| chunk.stats.step_us));
    headers
}
