//! The gRPC methods: check a chunk, queue it, wait for its rows or its deadline.

use std::sync::Arc;
use std::time::Duration;

use flowerbed_protocol::trace::{TRACEPARENT, traceparent};
use flowerbed_protocol::{Error, ErrorKind, Fault, PROTOCOL_VERSION, v1};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::chunk::Chunk;
use crate::command::{Command, CommandSender, Submission};
use crate::config::WorkerConfig;
use crate::deadline::Deadline;
use crate::state::State;

/// See the module.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) config: Arc<WorkerConfig>,
    pub(crate) state: Arc<State>,
    pub(crate) commands: CommandSender,
}

#[tonic::async_trait]
impl v1::inference_server::Inference for Service {
    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeResponse>, Status> {
        let budget = self.config.max_batch_tokens;
        let num_slots = u32::try_from(self.config.max_batch_sequences).unwrap_or(u32::MAX);
        let queue_limit = self.state.queue_limit(budget);
        let model = self.config.model.to_wire(budget, num_slots, queue_limit);
        Ok(Response::new(v1::DescribeResponse {
            protocol: PROTOCOL_VERSION,
            models: vec![model],
        }))
    }

    async fn run(
        &self,
        request: Request<v1::RunRequest>,
    ) -> Result<Response<v1::RunResponse>, Status> {
        let deadline = request
            .extensions()
            .get()
            .map_or_else(Instant::now, |Deadline(at)| *at);
        let trace = trace_of(request.metadata());
        self.answer(request.into_inner(), deadline)
            .await
            .map(Response::new)
            .map_err(|error| {
                log_failure(&error, trace.as_deref());
                error.into()
            })
    }
}

impl Service {
    async fn answer(
        &self,
        request: v1::RunRequest,
        deadline: Instant,
    ) -> Result<v1::RunResponse, Error> {
        let chunk = Chunk::check(&request, &self.config.model)?;
        drop(request);
        let (reply, answer) = oneshot::channel();
        let submission = Submission {
            chunk,
            deadline,
            reply,
            is_probe: false,
        };
        let call = async {
            let command = Command::Submit(submission);
            self.commands.send(command).await.map_err(|_| stopped())?;
            answer.await.map_err(|_| stopped())?
        };
        // Dropping `call` closes the reply channel, and the scheduler skips what nobody waits for.
        match tokio::time::timeout_at(deadline, call).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let message = "the deadline passed before the result was there";
                Err(Error::new(ErrorKind::DeadlineExceeded, message))
            }
        }
    }
}

fn trace_of(metadata: &MetadataMap) -> Option<String> {
    let value = metadata.get(TRACEPARENT)?;
    traceparent(value.as_bytes()).map(str::to_owned)
}

/// A failed call with its caller's trace, so that it is found again. Messages about the caller's
/// own faults may quote ids, so they stay out.
fn log_failure(error: &Error, traceparent: Option<&str>) {
    let (kind, index) = (error.kind.name(), error.index);
    let reason = (error.kind.fault() != Fault::Caller).then_some(error.message.as_str());
    if error.kind.fault() == Fault::Engine {
        tracing::warn!(kind, index, traceparent, reason, "a chunk failed");
    } else {
        tracing::debug!(kind, index, traceparent, reason, "a chunk was refused");
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "this worker is stopping").after(Duration::from_secs(1))
}

/// Lets only callers in that send the shared token, if there is one.
pub(crate) fn check_token(
    token: Option<&str>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + use<> {
    let token = Token::new(token);
    move |request| {
        let given = request.metadata().get("authorization");
        if token.admits(given.map(|value| value.as_bytes())) {
            Ok(request)
        } else {
            let message = "the worker's token is missing or wrong; set FLOWERBED_WORKER_TOKEN";
            Err(Error::new(ErrorKind::Unauthorized, message).into())
        }
    }
}

/// What callers must send as `authorization`, if anything.
#[derive(Clone)]
pub(crate) struct Token(Option<String>);

// === impl Token ===

impl Token {
    pub(crate) fn new(token: Option<&str>) -> Self {
        Self(token.map(|token| format!("Bearer {token}")))
    }

    pub(crate) fn admits(&self, given: Option<&[u8]>) -> bool {
        self.0
            .as_ref()
            .is_none_or(|expected| is_equal(given.unwrap_or_default(), expected.as_bytes()))
    }
}

/// Compares in a time that depends on the lengths alone.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
