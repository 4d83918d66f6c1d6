//! What a client may hold, and for how long.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;

/// HTTP/1: of a head and of what is read ahead; many connections may hold as much.
const BUFFER_BYTES: usize = 64 * 1_024;
/// HTTP/2: how often a client is asked whether it lives; it has 20 s to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Calls of one HTTP/2 connection at once; hyper's default.
const MAX_STREAMS: u32 = 200;

/// Some more than the largest answer there is.
const ANSWER_BYTES: usize = 256 * 1_024 * 1_024;

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Further ones wait in the kernel.
    pub max_connections: usize,
    /// To its first byte.
    pub first_byte: Duration,
    /// HTTP/1: to the end of a request's head, idle time before it included. Clients must tire first,
    /// lest they send into a connection that is being closed; Go's and Traefik's do after 90 s.
    pub head: Duration,
    /// Nothing came and nothing could be sent for so long. Who waits for an answer sends nothing.
    pub still: Duration,
    /// Nothing could be sent for so long.
    pub write: Duration,
    /// An answer was not read to its end for so long, and the time of its bytes at a slow rate.
    pub unread: Duration,
    /// Unread answers of one connection, where handlers count them by its [`Share`](crate::Share).
    pub answer_bytes: usize,
    /// HTTP/2: calls of one connection at once.
    pub max_streams: u32,
    /// HTTP/2: calls that were given up before they were looked at; one more ends the connection, and
    /// all its calls. `None` for h2's, which is 20.
    pub max_given_up: Option<usize>,
    /// HTTP/2: bytes that a client may send ahead on a stream and on a connection; `None` for hyper's.
    pub windows: Option<(u32, u32)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1_024,
            first_byte: Duration::from_secs(10),
            head: Duration::from_secs(100),
            still: Duration::from_secs(120),
            write: Duration::from_secs(30),
            unread: Duration::from_secs(60),
            answer_bytes: ANSWER_BYTES,
            max_streams: MAX_STREAMS,
            max_given_up: None,
            windows: None,
        }
    }
}

impl Limits {
    pub(crate) fn builder(&self) -> Builder<TokioExecutor> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head)
            .max_buf_size(BUFFER_BYTES);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_INTERVAL)
            .max_concurrent_streams(self.max_streams)
            .max_pending_accept_reset_streams(self.max_given_up);
        if let Some((stream, connection)) = self.windows {
            builder
                .http2()
                .initial_stream_window_size(stream)
                .initial_connection_window_size(connection);
        }
        builder
    }
}
