//! The service of one connection: the router, with each request counted until its answer has left.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use tower::ServiceExt as _;

use crate::share::Share;
use crate::traffic::{Open, Traffic};

/// See the module.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) router: Router,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) share: Share,
}

impl hyper::service::Service<Request<Incoming>> for Counted {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.share.clone());
        let open = self.traffic.begin();
        let answered = self.router.clone().oneshot(request);
        Box::pin(async move {
            answered
                .await
                .map(|response| response.map(|body| Answer::new(body, open)))
        })
    }
}

/// A body whose bytes count as open until the connection has let go of them.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Body,
    open: Arc<Open>,
}

impl Answer {
    fn new(body: Body, open: Open) -> Self {
        // What has no size is a stream, which may be open for ever.
        if let Some(num_bytes) = body.size_hint().exact() {
            open.answered(num_bytes);
        }
        Self {
            body,
            open: Arc::new(open),
        }
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        polled.map_ok(|frame| {
            frame.map_data(|data| {
                Bytes::from_owner(Unsent {
                    data,
                    _open: Arc::clone(&self.open),
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The connection drops it with the last of its bytes.
struct Unsent {
    data: Bytes,
    _open: Arc<Open>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}
