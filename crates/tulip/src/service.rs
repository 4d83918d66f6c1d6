//! The gRPC methods: check a chunk, queue it, wait for its rows or its deadline.

use std::sync::Arc;
use std::time::Duration;

use flowerbed_protocol::{Error, ErrorKind, PROTOCOL_VERSION, v1};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::chunk::Chunk;
use crate::config::WorkerConfig;
use crate::deadline::Deadline;
use crate::dispatcher::{Command, CommandSender, Submission};
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
        let model = self
            .config
            .model
            .to_wire(budget, self.state.queue_limit(budget));
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
        let chunk = Chunk::check(request.get_ref(), &self.config.model)?;
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
            Ok(outcome) => Ok(Response::new(outcome?)),
            Err(_) => {
                let message = "the deadline passed before the result was there";
                Err(Error::new(ErrorKind::DeadlineExceeded, message).into())
            }
        }
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "this worker is stopping").after(Duration::from_secs(1))
}

/// Lets only callers in that send the shared token, if there is one.
pub(crate) fn check_token(
    token: Option<&str>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + use<> {
    let expected = token.map(|token| format!("Bearer {token}"));
    move |request| {
        let Some(expected) = &expected else {
            return Ok(request);
        };
        let given = request
            .metadata()
            .get("authorization")
            .map_or(&b""[..], |v| v.as_bytes());
        if is_equal(given, expected.as_bytes()) {
            Ok(request)
        } else {
            let message = "the worker's token is missing or wrong; set FLOWERBED_WORKER_TOKEN";
            Err(Error::new(ErrorKind::Unauthorized, message).into())
        }
    }
}

/// Compares in a time that depends on the lengths alone.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}
