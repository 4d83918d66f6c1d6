//! Keep-alive connections of one stream, one request at a time on each.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use crate::plan::Item;

/// A whole answer.
#[derive(Debug)]
pub struct Response {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// The idle ones wait here; last in, first out, so that few are kept in use.
#[derive(Debug)]
pub struct Connections {
    target: SocketAddr,
    host: HeaderValue,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
    num_opened: AtomicU64,
    /// Connections that ended with an error, say for bytes that nobody had asked for.
    num_broken: Arc<AtomicU64>,
}

impl Connections {
    /// None is opened yet.
    #[must_use]
    pub fn new(target: SocketAddr) -> Self {
        let host = HeaderValue::try_from(target.to_string());
        Self {
            target,
            host: host.unwrap_or_else(|_| HeaderValue::from_static("localhost")),
            idle: Mutex::default(),
            num_opened: AtomicU64::new(0),
            num_broken: Arc::default(),
        }
    }

    /// How many were opened, and how many of them broke.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.num_opened), read(&self.num_broken))
    }

    /// Sends a request and reads its whole answer. Dropping the future hangs up. The error is the
    /// step at which it failed.
    pub async fn send(&self, item: &Item) -> Result<Response, &'static str> {
        let mut request = self.request(item);
        loop {
            let reused = self.take_idle();
            let is_fresh = reused.is_none();
            let mut sender = match reused {
                Some(sender) => sender,
                None => self.open().await?,
            };
            // Its last answer is read, but its task may not have noticed yet.
            if sender.ready().await.is_err() {
                if is_fresh {
                    return Err("cannot connect");
                }
                continue;
            }
            let response = match sender.try_send_request(request).await {
                Ok(response) => response,
                Err(mut error) => match error.take_message() {
                    // The server had closed it while it was idle; nothing was sent.
                    Some(unsent) if !is_fresh => {
                        request = unsent;
                        continue;
                    }
                    _ => return Err("no answer"),
                },
            };
            let (head, body) = response.into_parts();
            let body = body.collect().await.map_err(|_| "half an answer")?;
            self.idle.lock().push(sender);
            return Ok(Response {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            });
        }
    }

    fn request(&self, item: &Item) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(item.body.clone()));
        *request.method_mut() = item.method.clone();
        *request.uri_mut() = item.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(item.headers.clone());
        request
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        while let Some(sender) = idle.pop() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, &'static str> {
        let stream = TcpStream::connect(self.target).await;
        let stream = stream.map_err(|_| "cannot connect")?;
        stream.set_nodelay(true).map_err(|_| "cannot connect")?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|_| "cannot connect")?;
        self.num_opened.fetch_add(1, Ordering::Relaxed);
        let num_broken = Arc::clone(&self.num_broken);
        tokio::spawn(async move {
            if connection.await.is_err() {
                num_broken.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok(sender)
    }
}
