//! One request with a JSON body, from its head to its answer: its time, its body, its place in the
//! metrics. Every such route runs inside [`answer`], and everything that it starts ends with it.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use flowerbed_connection::Share;
use flowerbed_protocol::v1::Lane;
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::body::{Held, declared_length};
use crate::compute::{Compute, Work};
use crate::context::Context;
use crate::error::Error;
use crate::fields::Asked;
use crate::form::Form;
use crate::headers;
use crate::replica::{CallOptions, deadline_exceeded};
use crate::wire::echo;

/// What surrounds one request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) context: Context,
    pub(crate) started: Instant,
    /// What the headers ask.
    pub(crate) lane: Option<Lane>,
    pub(crate) options: CallOptions,
    /// Of its connection.
    share: Option<Share>,
}

impl Call {
    /// Whether there is room for an answer of about so many bytes, before it is worked for.
    pub(crate) fn check_answer(&self, num_bytes: usize) -> Result<(), RequestError> {
        self.app.answers.check(num_bytes, self.share.as_ref())
    }
}

/// A request that was read, with the memory that its body holds.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) asked: Asked,
    pub(crate) held: Held,
}

/// Reads `request` by `form` and answers it with `handler`, within the request's time.
///
/// Order of refusals: the body, then its meaning, then whether the gateway can take it now.
pub(crate) async fn answer(
    app: Arc<App>,
    context: Context,
    request: Request,
    form: &'static Form,
    handler: impl AsyncFnOnce(&Call, Received) -> Result<Response, Error>,
) -> Response {
    let started = Instant::now();
    let is_short = declared_length(request.headers())
        .is_some_and(|length| usize::try_from(length).is_ok_and(Compute::is_small));
    if is_short {
        app.awake.touch();
    }
    let longest = app.config.request_timeout;
    let timeout = headers::timeout(request.headers(), longest);
    let deadline = started + *timeout.as_ref().unwrap_or(&longest);
    let lane = timeout.and_then(|_| headers::asked_lane(request.headers()));
    let call = Call {
        lane: lane.as_ref().ok().copied().flatten(),
        options: CallOptions {
            deadline,
            traceparent: headers::traceparent(request.headers()),
        },
        share: request.extensions().get::<Share>().cloned(),
        app,
        context,
        started,
    };
    let answered = Box::pin(async {
        let held = call.app.body_memory.read_json(request).await?;
        lane?;
        let asked = parse(&call.app.compute, held.bytes.clone(), form).await?;
        check_model(&call.app, asked.options.model.as_deref())?;
        call.context.set_model(&call.app.config.model.id);
        handler(&call, Received { asked, held }).await
    });
    let result = timeout_at(deadline, answered)
        .await
        .unwrap_or_else(|_| Err(Error::from(deadline_exceeded())));
    result.unwrap_or_else(|error| {
        if let Error::Request(error) = &error
            && error.kind.is_shed()
        {
            call.app.metrics.shed(error.kind);
        }
        error.into_response()
    })
}

async fn parse(
    compute: &Compute,
    body: bytes::Bytes,
    form: &'static Form,
) -> Result<Asked, RequestError> {
    if Compute::is_small(body.len()) {
        return Asked::parse(&body, form);
    }
    compute
        .run(Work::Json, move |_| Asked::parse(&body, form))
        .await?
}

/// Writes an answer that is made of so many bytes, off the runtime if they are many.
pub(crate) async fn write<T: Send + 'static>(
    compute: &Compute,
    num_bytes: usize,
    write: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    if Compute::is_small(num_bytes) {
        return write();
    }
    compute.run(Work::Json, move |_| write()).await?
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
