//! Settings of one worker, as `python/flowerbed/config.py` writes them. That file owns the defaults.

use std::time::Duration;

use flowerbed_protocol::settings::{self, Secret};
use flowerbed_protocol::v1;
use serde::Deserialize;

use crate::scheduler::Stream;

/// Mirror of `WorkerConfig` in Python; unknown fields are refused so that the two cannot drift apart.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerConfig {
    /// What this worker serves.
    pub model: ModelConfig,
    /// `host:port` or `unix:path`.
    pub listen: String,
    /// `host:port` that serves nothing but the metrics, if there is one.
    pub metrics_listen: Option<String>,
    /// Shared secret that callers send as a bearer token.
    pub token: Option<Secret>,
    /// Budget of one step, in cost.
    pub max_batch_tokens: u64,
    /// Budget of a step of bulk work while nobody waits for queries, in cost.
    pub saturation_batch_tokens: u64,
    /// Budget of a step of the stream that only queries use, in cost.
    pub online_batch_tokens: u64,
    /// Budget of such a step while other work runs, in cost.
    pub beside_batch_tokens: u64,
    /// Slot limit of one step.
    pub max_batch_sequences: usize,
    /// Streams of the device.
    pub streams: Vec<Stream>,
    /// Steps that may be in flight on each stream.
    pub steps_in_flight: usize,
    /// Deadline of callers that set none.
    #[serde(rename = "request_timeout_s", deserialize_with = "settings::seconds")]
    pub request_timeout: Duration,
    /// A step that takes longer hangs, and only a new process helps.
    #[serde(rename = "step_timeout_s", deserialize_with = "settings::seconds")]
    pub step_timeout: Duration,
    /// How long threads stay awake after a query.
    #[serde(rename = "spin_ms", deserialize_with = "settings::millis")]
    pub spin: Duration,
    /// Rate measured at warm-up; sizes the queue until steps have run.
    pub cost_per_second: f64,
}

/// Mirror of `ModelInfo` in Python.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "documented in the proto, field by field")]
pub struct ModelConfig {
    pub id: String,
    pub revision: String,
    pub space: String,
    pub tokenizer_sha256: String,
    pub text_sha256: String,
    pub max_length: u32,
    pub vocab_rows: u32,
    pub dimensions: u32,
    pub allowed_dimensions: Vec<u32>,
    pub normalize: bool,
    pub heads: Vec<Head>,
    pub attention_scale: f64,
    pub dtype: String,
    pub device: String,
    pub pooling: String,
    pub token_dimensions: u32,
    pub weights_sha256: String,
}

/// What a model can answer with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Head {
    /// One dense vector a segment.
    Embed,
    /// One relevance score a sequence.
    Score,
    /// One sparse vector a segment.
    Sparse,
    /// One vector a token.
    Tokens,
}

impl Head {
    /// Name as Python and JSON spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Score => "score",
            Self::Sparse => "sparse",
            Self::Tokens => "tokens",
        }
    }

    pub(crate) fn from_wire(head: v1::Head) -> Option<Self> {
        match head {
            v1::Head::Unspecified => None,
            v1::Head::Embed => Some(Self::Embed),
            v1::Head::Score => Some(Self::Score),
            v1::Head::Sparse => Some(Self::Sparse),
            v1::Head::Tokens => Some(Self::Tokens),
        }
    }

    pub(crate) fn to_wire(self) -> v1::Head {
        match self {
            Self::Embed => v1::Head::Embed,
            Self::Score => v1::Head::Score,
            Self::Sparse => v1::Head::Sparse,
            Self::Tokens => v1::Head::Tokens,
        }
    }
}

impl ModelConfig {
    pub(crate) fn to_wire(
        &self,
        max_batch_tokens: u64,
        max_batch_sequences: u32,
        queue_limit: u64,
    ) -> v1::ModelInfo {
        v1::ModelInfo {
            id: self.id.clone(),
            revision: self.revision.clone(),
            space: self.space.clone(),
            tokenizer_sha256: self.tokenizer_sha256.clone(),
            text_sha256: self.text_sha256.clone(),
            max_length: self.max_length,
            vocab_rows: self.vocab_rows,
            dimensions: self.dimensions,
            allowed_dimensions: self.allowed_dimensions.clone(),
            normalize: self.normalize,
            heads: self
                .heads
                .iter()
                .map(|head| head.to_wire().into())
                .collect(),
            max_batch_tokens,
            queue_limit,
            attention_scale: self.attention_scale,
            dtype: self.dtype.clone(),
            device: self.device.clone(),
            pooling: self.pooling.clone(),
            token_dimensions: self.token_dimensions,
            weights_sha256: self.weights_sha256.clone(),
            max_batch_sequences,
        }
    }
}
