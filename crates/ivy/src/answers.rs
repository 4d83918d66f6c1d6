//! Memory for answers, held until they are sent or their client is gone.
//!
//! Taken without waiting: a request that finds none is refused. A connection has a share of it, lest
//! one that reads nothing takes all. Every route that has one of the dialects answers through
//! [`send`].

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use flowerbed_connection::Share;
use flowerbed_protocol::{Error as RequestError, ErrorKind};
use http_body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Dialect, Error, in_dialect, internal};
use crate::metrics::Metrics;

/// Answers that all clients together may leave unread; the largest possible one has some 200 MB.
const MAX_HELD_BYTES: usize = 1_024 * 1_024 * KIB;
/// Answers that small have memory of their own, which large ones cannot take.
const MAX_SMALL_BYTES: usize = 64 * KIB;
const SMALL_HELD_BYTES: usize = 64 * 1_024 * KIB;
const KIB: usize = 1_024;

/// Memory for answers.
#[derive(Clone, Debug)]
pub(crate) struct AnswerMemory {
    small: Arc<Semaphore>, // KiB
    large: Arc<Semaphore>, // KiB
}

impl AnswerMemory {
    pub(crate) fn new() -> Self {
        Self::with(SMALL_HELD_BYTES, MAX_HELD_BYTES)
    }

    fn with(small_bytes: usize, large_bytes: usize) -> Self {
        Self {
            small: Arc::new(Semaphore::new(small_bytes / KIB)),
            large: Arc::new(Semaphore::new(large_bytes / KIB)),
        }
    }

    fn part(&self, num_bytes: usize) -> (&Arc<Semaphore>, u32) {
        let part = if num_bytes <= MAX_SMALL_BYTES {
            &self.small
        } else {
            &self.large
        };
        (
            part,
            // Below 1 KiB it is nothing: whatever others leave unread, probes are answered.
            u32::try_from(num_bytes / KIB).unwrap_or(u32::MAX),
        )
    }

    /// Whether there is room now for an answer of about so many bytes, before it is worked for.
    /// Takes nothing: what waits for the device must not keep others from answering.
    pub(crate) fn check(
        &self,
        num_bytes: usize,
        share: Option<&Share>,
    ) -> Result<(), RequestError> {
        if share.is_some_and(|share| !share.has_room(num_bytes)) {
            return Err(full(OF_ONE_CLIENT));
        }
        let (part, num_kib) = self.part(num_bytes);
        if part.available_permits() >= num_kib as usize {
            Ok(())
        } else {
            Err(full(OF_ALL))
        }
    }

    fn take(&self, num_bytes: usize, share: Option<&Share>) -> Result<Permits, RequestError> {
        let own = share
            .map(|share| share.take(num_bytes).ok_or_else(|| full(OF_ONE_CLIENT)))
            .transpose()?;
        let (part, num_kib) = self.part(num_bytes);
        let of_all = Arc::clone(part)
            .try_acquire_many_owned(num_kib)
            .map_err(|_| full(OF_ALL))?;
        Ok((of_all, own))
    }

    /// The response again, its body with a share of the memory.
    async fn hold(
        &self,
        response: Response,
        share: Option<&Share>,
    ) -> Result<Response, RequestError> {
        // An error's body is short, and is written again in its dialect.
        if response.extensions().get::<Error>().is_some() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let num_bytes = body
            .size_hint()
            .exact()
            .and_then(|size| usize::try_from(size).ok());
        let permits = self.take(num_bytes.unwrap_or(usize::MAX), share)?;
        let bytes = to_bytes(body, usize::MAX)
            .await
            .map_err(|_| internal("an answer that could not be read"))?;
        let held = Held {
            bytes,
            _permits: permits,
        };
        Ok(Response::from_parts(
            head,
            Body::from(Bytes::from_owner(held)),
        ))
    }
}

/// Of all answers, and of those of one connection.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

/// The bytes of an answer; the connection drops them when they are sent, or with itself.
struct Held {
    bytes: Bytes,
    _permits: Permits,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What [`send`] needs.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) memory: AnswerMemory,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) dialect: Dialect,
}

/// Lets an answer go with its share of the memory; a failure in the dialect of its route.
pub(crate) async fn send(State(sending): State<Sending>, request: Request, next: Next) -> Response {
    let share = request.extensions().get::<Share>().cloned();
    let response = next.run(request).await;
    let held = sending.memory.hold(response, share.as_ref()).await;
    let response = held.unwrap_or_else(|error| {
        sending.metrics.shed(error.kind);
        Error::from(error).into_response()
    });
    in_dialect(sending.dialect, response)
}

const OF_ALL: &str = "the gateway holds as many unread answers as it may; try again";
const OF_ONE_CLIENT: &str =
    "this connection has left as many answers unread as one may: read them, then try again";

fn full(message: &str) -> RequestError {
    RequestError::new(ErrorKind::Overloaded, message).after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};

    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use flowerbed_connection::{Limits, serve};
    use hyper::client::conn::http2;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::net::TcpListener;

    use super::*;

    /// More than sockets buffer.
    const LARGE: usize = 24 * 1_024 * KIB;

    /// A server whose memory has room for two large answers.
    async fn start(memory: &AnswerMemory) -> SocketAddr {
        start_with(memory, Limits::default()).await
    }

    async fn start_with(memory: &AnswerMemory, limits: Limits) -> SocketAddr {
        let sending = Sending {
            memory: memory.clone(),
            metrics: Arc::new(Metrics::new()),
            dialect: Dialect::Tei,
        };
        let router = Router::new()
            .route("/large", get(async || vec![b'a'; LARGE]))
            .route("/small", get(async || "small"))
            .layer(from_fn_with_state(sending, send));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let draining = std::future::pending();
        tokio::spawn(serve(listener, limits, router, draining));
        address
    }

    fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut client = TcpStream::connect(address).unwrap();
        write!(
            client,
            "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        client
    }

    fn read(mut client: &TcpStream) -> String {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    async fn until_free(memory: &AnswerMemory, num_answers: usize) {
        for _ in 0..500 {
            if memory.large.available_permits() == num_answers * LARGE / KIB {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{} KiB are free", memory.large.available_permits());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_probe_is_answered_when_no_memory_is_left() {
        let address = start(&AnswerMemory::with(0, 0)).await;
        assert!(read(&ask(address, "/large")).starts_with("HTTP/1.1 429"));
        assert!(read(&ask(address, "/small")).ends_with("small"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unread_answers_hold_memory_until_they_are_read_or_their_client_is_gone() {
        let memory = AnswerMemory::with(MAX_SMALL_BYTES, 2 * LARGE);
        let address = start(&memory).await;
        let unread = [ask(address, "/large"), ask(address, "/large")];
        until_free(&memory, 0).await;
        memory.check(LARGE, None).unwrap_err();
        let refused = read(&ask(address, "/large"));
        assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
        assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
        assert!(
            refused.ends_with("\"error_type\":\"Overloaded\"}"),
            "{refused}"
        );
        assert!(read(&ask(address, "/small")).ends_with("small"));

        let [first, second] = unread;
        assert!(read(&first).len() > LARGE);
        until_free(&memory, 1).await;
        memory.check(LARGE, None).unwrap();
        drop(second);
        until_free(&memory, 2).await;
        assert!(read(&ask(address, "/large")).starts_with("HTTP/1.1 200"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_connection_that_reads_nothing_leaves_memory_to_others() {
        let memory = AnswerMemory::with(MAX_SMALL_BYTES, 10 * LARGE);
        let limits = Limits {
            answer_bytes: 2 * LARGE,
            ..Limits::default()
        };
        let address = start_with(&memory, limits).await;
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let get = async |path: &str| {
            let request = Request::get(format!("http://test{path}"));
            let request = request.body(Body::empty()).unwrap();
            client.clone().send_request(request).await.unwrap()
        };
        let unread = [get("/large").await, get("/large").await];
        assert_eq!(
            unread.each_ref().map(|answer| answer.status().as_u16()),
            [200; 2]
        );
        let refused = get("/large").await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()["retry-after"]),
            (429, &"1".parse().unwrap())
        );
        let refused = to_bytes(Body::new(refused.into_body()), KIB).await.unwrap();
        assert!(
            refused.starts_with(b"{\"error\":\"this connection has left"),
            "{refused:?}"
        );
        assert_eq!(get("/small").await.status(), 200);
        assert!(read(&ask(address, "/large")).starts_with("HTTP/1.1 200"));

        let [first, _second] = unread;
        drop(first);
        until_free(&memory, 9).await;
        assert_eq!(get("/large").await.status(), 200);
    }
}
