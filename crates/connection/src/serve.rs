//! Accepts connections until the server drains; one task serves each.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_io_timeout::TimeoutStream;

use crate::answer::Counted;
use crate::limits::Limits;
use crate::moving::Moving;
use crate::share::Share;
use crate::traffic::Traffic;

/// After a failed accept: out of file descriptors, say.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listener.
pub trait Accept: Send {
    /// What it accepts.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Serves until `draining` ends and every request that was begun is answered. Then a connection is
/// closed, be it in the middle of a request's head.
pub async fn serve(
    listener: impl Accept,
    limits: Limits,
    router: Router,
    draining: impl Future<Output = ()>,
) {
    let (drain, is_draining) = watch::channel(false);
    let connections = Connections {
        limits,
        http: limits.builder(),
        router,
        is_draining,
    };
    let places = Arc::new(Semaphore::new(limits.max_connections));
    let mut draining = pin!(draining);
    loop {
        let accepted = async {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .map_err(io::Error::other)?;
            listener.accept().await.map(|stream| (stream, place))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            () = &mut draining => break,
        };
        match accepted {
            Ok((stream, place)) => connections.spawn(stream, place),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop((listener, connections));
    drain.send_replace(true);
    // Every connection holds a receiver.
    drain.closed().await;
}

/// What all connections of a listener share.
struct Connections {
    limits: Limits,
    http: Builder<TokioExecutor>,
    router: Router,
    is_draining: watch::Receiver<bool>,
}

impl Connections {
    fn spawn(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        place: OwnedSemaphorePermit,
    ) {
        let Limits {
            first_byte,
            still,
            write,
            unread,
            answer_bytes,
            ..
        } = self.limits;
        let (http, router) = (self.http.clone(), self.router.clone());
        let mut is_draining = self.is_draining.clone();
        tokio::spawn(async move {
            let _place = place;
            let mut stream = TimeoutStream::new(stream);
            stream.set_write_timeout(Some(write));
            let begun = Moving::begin(Box::pin(stream), still);
            let begun = tokio::select! {
                begun = timeout(first_byte, begun) => begun,
                _ = is_draining.wait_for(|it| *it) => return,
            };
            let Ok(Ok(stream)) = begun else {
                return;
            };
            let service = Counted {
                router,
                traffic: Traffic::new(unread),
                share: Share::new(answer_bytes),
            };
            run(stream, &http, service, is_draining).await;
        });
    }
}

/// Serves one connection to its end.
async fn run(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    http: &Builder<TokioExecutor>,
    service: Counted,
    mut is_draining: watch::Receiver<bool>,
) {
    let traffic = Arc::clone(&service.traffic);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let overdue = async {
        traffic.overdue().await;
        tracing::debug!("a client does not read its answer; closing its connection");
    };
    let drained = async {
        // Fails if the server is gone, which comes to the same.
        let _ = is_draining.wait_for(|it| *it).await;
    };
    let ended = tokio::select! {
        biased;
        ended = &mut connection => Some(ended),
        () = overdue => None,
        () = drained => None,
    };
    let ended = if let Some(ended) = ended {
        ended
    } else {
        // Other calls of HTTP/2 are answered first.
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            biased;
            ended = &mut connection => ended,
            () = traffic.quiet() => return,
        }
    };
    if let Err(error) = ended {
        // A client that hangs up is no event.
        tracing::debug!(%error, "connection ended");
    }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = Self::accept(self).await?;
        // Small answers must not wait for the client's acknowledgement.
        drop(stream.set_nodelay(true));
        Ok(stream)
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Ok(Self::accept(self).await?.0)
    }
}
