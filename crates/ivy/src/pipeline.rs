//! The road of every request that asks for vectors: admit, tokenize, split, dispatch, collect.
//!
//! Knows no dialect: what is asked comes as one list of inputs, what is answered goes as rows.

use std::time::Duration;

use flowerbed_protocol::v1::{Head, ModelInfo, Normalize};
use flowerbed_protocol::{CostModel, Error, ErrorKind, limits};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::admission::Admitted;
use crate::call::{Call, Received};
use crate::dispatch::{Ask, Dispatch, Rows};
use crate::form::Names;
use crate::glance::{Glance, glance};
use crate::headers;
use crate::pool::Group;
use crate::tokenize::{Encoding, tokenize};
use crate::wire::Format;

/// A float32 in JSON, about; in base64, with the quotes; and as it is.
const BYTES_PER_NUMBER: usize = 12;
const BYTES_IN_BASE64: usize = 6;
const BYTES_AS_THEY_ARE: usize = 4;
const SPACE: HeaderName = HeaderName::from_static("x-flowerbed-space");
const QUEUE_US: HeaderName = HeaderName::from_static("x-flowerbed-queue-us");
const STEP_US: HeaderName = HeaderName::from_static("x-flowerbed-step-us");
const TRUNCATED: HeaderName = HeaderName::from_static("x-flowerbed-truncated");
const EMPTY: HeaderValue = HeaderValue::from_static("");

/// What a route wants of the model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) head: Head,
    pub(crate) normalize: Normalize,
    /// Whether the answer lists the rows, and not only what was made of them.
    pub(crate) are_listed: bool,
}

/// The rows of a request, and what it took to make them.
#[derive(Debug)]
pub(crate) struct Collected {
    /// Chunk by chunk, in the order of the inputs.
    pub(crate) rows: Vec<Rows>,
    /// Floats a row, at least 1.
    pub(crate) dimensions: usize,
    /// Tokens of each input.
    pub(crate) lengths: Vec<usize>,
    pub(crate) names: Names,
    /// See [`Inputs::num_chars`](crate::input::Inputs::num_chars).
    pub(crate) num_chars: usize,
    pub(crate) num_truncated: usize,
    pub(crate) tokenize_time: Duration,
    /// The workers that were asked.
    pub(crate) group: Group,
    /// Counts against the queues until the answer is written: rows take memory.
    pub(crate) admitted: Admitted,
}

impl Collected {
    /// Ids that the model ran.
    pub(crate) fn num_tokens(&self) -> usize {
        self.lengths.iter().sum()
    }

    /// Bytes of all rows.
    pub(crate) fn num_bytes(&self) -> usize {
        self.rows.iter().map(|rows| rows.data.len()).sum()
    }

    /// Wait for a step; the slowest chunk is what the caller waited for.
    pub(crate) fn queue_time(&self) -> Duration {
        let times = self.rows.iter().map(|rows| rows.stats.queue_us);
        Duration::from_micros(times.max().unwrap_or(0))
    }

    /// Time in steps, of the slowest chunk.
    pub(crate) fn step_time(&self) -> Duration {
        let times = self.rows.iter().map(|rows| rows.stats.step_us);
        Duration::from_micros(times.max().unwrap_or(0))
    }

    /// The headers of every dialect.
    pub(crate) fn headers(&self) -> HeaderMap {
        let micros =
            |time: Duration| HeaderValue::from(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let space = HeaderValue::try_from(self.group.space()).unwrap_or(EMPTY);
        HeaderMap::from_iter([
            (SPACE, space),
            (QUEUE_US, micros(self.queue_time())),
            (STEP_US, micros(self.step_time())),
            (TRUNCATED, HeaderValue::from(self.num_truncated)),
        ])
    }
}

fn bytes_per_value(format: Option<Format>) -> usize {
    match format {
        None | Some(Format::Float) => BYTES_PER_NUMBER,
        Some(Format::Base64) => BYTES_IN_BASE64,
        Some(Format::Bytes) => BYTES_AS_THEY_ARE,
    }
}

/// Runs a request through the workers.
pub(crate) async fn run(
    call: &Call,
    received: Received,
    wanted: Wanted,
) -> Result<Collected, Error> {
    let (app, Received { asked, held }) = (&call.app, received);
    let group = app.pool.group()?;
    let info = &group.session.info;
    let dimensions = dimensions(asked.options.dimensions, wanted.head, info)?;
    // A queue that is full refuses before anything is tokenized, but nothing that it would take.
    let cost_model = CostModel::new(info.attention_scale);
    let Glance {
        inputs,
        least_cost,
        num_chars,
    } = glance(&app.compute, &app.encoder, cost_model, asked.inputs).await?;
    let best_lane = headers::embedding_lane(least_cost, call.lane);
    app.pool.check(&group, best_lane, least_cost)?;

    let started = Instant::now();
    let truncate = asked.options.truncate.unwrap_or(app.config.auto_truncate);
    let names = asked.names;
    let encoding = Encoding {
        names,
        prompt_name: asked.options.prompt_name,
        truncation: app.encoder.truncation(truncate, asked.options.side),
        vocab_rows: info.vocab_rows,
    };
    let sequences = tokenize(&app.compute, &app.encoder, inputs, encoding).await?;
    drop(held);
    let tokenize_time = started.elapsed();
    let lengths: Vec<usize> = sequences.iter().map(|one| one.ids.len()).collect();
    let num_tokens = lengths.iter().sum();
    let num_truncated = sequences.iter().filter(|one| one.is_truncated).count();
    app.metrics
        .tokenized(tokenize_time, num_tokens, num_truncated);
    if wanted.head == Head::Tokens {
        check_num_values(num_tokens, dimensions, names)?;
    }

    let costs: Vec<u64> = lengths
        .iter()
        .map(|length| cost_model.cost(*length as u64))
        .collect();
    let cost = costs.iter().sum();
    let lane = headers::embedding_lane(cost, call.lane);
    call.context.set_lane(headers::lane_name(lane));
    if wanted.are_listed {
        let num_rows = match wanted.head {
            Head::Tokens => num_tokens,
            _ => sequences.len(),
        };
        let value = bytes_per_value(asked.options.format);
        call.check_answer(value * num_rows * dimensions as usize)?;
    }
    let admitted = app.pool.admit(&group, lane, cost)?;
    let dispatch = Dispatch {
        pool: &app.pool,
        group: &group,
        ask: Ask {
            head: wanted.head,
            dimensions,
            normalize: wanted.normalize,
            names,
            lane,
            options: call.options.clone(),
        },
    };
    let rows = dispatch.run(&sequences, &costs).await?;
    Ok(Collected {
        rows,
        dimensions: dimensions as usize,
        lengths,
        names,
        num_chars,
        num_truncated,
        tokenize_time,
        group,
        admitted,
    })
}

/// Floats a row. The native size is always served.
fn dimensions(asked: Option<i128>, head: Head, info: &ModelInfo) -> Result<u32, Error> {
    if !info.heads.contains(&head.into()) {
        let message = format!("{} has no head for this route", info.id);
        return Err(Error::new(ErrorKind::NoHead, message));
    }
    if head == Head::Tokens {
        return Ok(info.token_dimensions.max(1));
    }
    let native = info.dimensions.max(1);
    let allowed = &info.allowed_dimensions;
    let Some(asked) = asked else {
        return Ok(native);
    };
    let is_served = |size: &u32| {
        *size == native
            || if allowed.is_empty() {
                (1..=native).contains(size)
            } else {
                allowed.contains(size)
            }
    };
    if let Some(size) = u32::try_from(asked).ok().filter(is_served) {
        return Ok(size);
    }
    let known = if allowed.is_empty() {
        format!("1 to {native}")
    } else {
        let listed: Vec<String> = allowed.iter().map(u32::to_string).collect();
        format!("{} and {native}", listed.join(", "))
    };
    let message = format!("dimensions is {asked}; {} gives {known}", info.id);
    Err(Error::invalid("dimensions", message))
}

/// A vector for each token soon makes an answer that nobody can read.
fn check_num_values(num_tokens: usize, dimensions: u32, names: Names) -> Result<(), Error> {
    let limit = limits::MAX_TOKEN_VALUES / dimensions as usize;
    if num_tokens <= limit {
        return Ok(());
    }
    let field = names.field();
    let message = format!(
        "{field} has {num_tokens} tokens, the limit is {limit} where each gets {dimensions} values: \
         split the request"
    );
    Err(Error::new(ErrorKind::TooLarge, message).in_field(field))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn an_answer_is_as_long_as_it_is_taken_for_by_its_format() {
        let values = [0.123_456_79_f32; 384];
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        for (format, num_bytes) in [
            (None, serde_json::to_vec(&values[..]).unwrap().len()),
            (
                Some(Format::Float),
                serde_json::to_vec(&values[..]).unwrap().len(),
            ),
            (Some(Format::Base64), STANDARD.encode(&bytes).len()),
            (Some(Format::Bytes), bytes.len()),
        ] {
            let taken_for = bytes_per_value(format) * values.len();
            assert!(
                num_bytes <= taken_for && taken_for <= num_bytes + num_bytes / 4,
                "{format:?}"
            );
        }
    }
}
