//! Clients that stall cost little and hold no drain up.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use flowerbed_connection::{Limits, serve};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(200);
/// More than sockets buffer.
const LARGE: usize = 32 << 20;
const HTTP2_HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

struct Server {
    address: SocketAddr,
    drain: oneshot::Sender<()>,
    serving: JoinHandle<()>,
}

impl Server {
    async fn start(limits: Limits) -> Self {
        let router = Router::new()
            .route("/small", get(async || "small"))
            .route("/some", get(async || vec![b'a'; 100_000]))
            .route("/later", get(later))
            .route("/large", get(async || vec![b'a'; LARGE]))
            .route("/never", get(async || pending::<()>().await));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (drain, drained) = oneshot::channel();
        let serving = tokio::spawn(serve(listener, limits, router, async {
            let _ = drained.await;
        }));
        Self {
            address,
            drain,
            serving,
        }
    }

    async fn client(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(bytes.as_ref()).await.unwrap();
        sleep(MOMENT).await;
        stream
    }

    async fn drain(self) -> Result<(), tokio::time::error::Elapsed> {
        self.drain.send(()).unwrap();
        timeout(LONG, self.serving).await.map(Result::unwrap)
    }
}

async fn later() -> &'static str {
    sleep(8 * MOMENT).await;
    "later"
}

fn ask(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")
}

async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    timeout(LONG, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn a_drain_ends_whatever_clients_have_begun_to_say() {
    let server = Server::start(Limits::default()).await;
    let mut used = server.client(ask("/small")).await;
    let mut clients = vec![
        server.client("").await,
        server.client("GET / HTTP/1.1\r\nho").await,
        server.client("P").await,
        server.client(HTTP2_HELLO).await,
    ];
    let mut answer = [0; 12];
    used.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    clients.push(used);
    server.drain().await.unwrap();
    for client in &mut clients {
        assert!(is_closed(client).await);
    }
}

#[tokio::test]
async fn a_drain_waits_for_open_requests_and_for_answers_that_are_being_read() {
    let server = Server::start(Limits::default()).await;
    let mut reader = server.client(ask("/large")).await;
    let reading = tokio::spawn(async move {
        sleep(15 * MOMENT).await;
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).await.unwrap();
        answer.len()
    });
    server.drain().await.unwrap();
    assert!(reading.await.unwrap() > LARGE);

    let server = Server::start(Limits::default()).await;
    let _asking = server.client(ask("/never")).await;
    server.drain.send(()).unwrap();
    timeout(15 * MOMENT, server.serving).await.unwrap_err();
}

#[tokio::test]
async fn a_client_that_says_nothing_or_reads_nothing_is_let_go() {
    let limits = Limits {
        first_byte: MOMENT,
        unread: MOMENT,
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    assert!(is_closed(&mut server.client("").await).await);
    // 256 s for its bytes at a slow rate; a client on HTTP/2 that lives but opens no window.
    let mut slow = server.client(ask("/large")).await;
    sleep(2 * MOMENT).await;
    let mut begun = vec![0; 1_024];
    slow.read_exact(&mut begun).await.unwrap();
    let mut settings = HTTP2_HELLO.to_vec();
    settings.truncate(24);
    settings.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0"); // windows of 0 bytes
    settings.extend(b"\0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x04\x06/small\x41\x01a"); // GET /small
    let mut closed = server.client(settings).await;
    assert!(is_closed(&mut closed).await);
}

#[tokio::test]
async fn an_answer_that_is_read_slowly_is_sent_to_its_end() {
    let limits = Limits {
        still: 5 * MOMENT,
        unread: MOMENT,
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    let mut slow = server.client(ask("/large")).await;
    let mut part = vec![0; LARGE / 64];
    let start = Instant::now();
    for _ in 0..64 {
        sleep(MOMENT / 4).await;
        slow.read_exact(&mut part).await.unwrap();
    }
    assert!(start.elapsed() > 2 * limits.still);
}

#[tokio::test]
async fn an_answer_that_is_left_unread_takes_no_other_of_its_connection_along() {
    let limits = Limits {
        unread: MOMENT,
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (mut client, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1_024)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let get = |path: &str| {
        let request = Request::get(format!("http://test{path}"));
        request.body(Empty::<Bytes>::new()).unwrap()
    };
    let _unread = client.send_request(get("/some")).await.unwrap();
    let later = client.send_request(get("/later")).await.unwrap();
    let later = later.into_body().collect().await.unwrap();
    assert_eq!(later.to_bytes(), "later");
    let _ = timeout(LONG, connection).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_kept_for_longer_than_clients_keep_theirs() {
    let server = Server::start(Limits::default()).await;
    let mut client = server.client(ask("/small")).await;
    let start = Instant::now();
    client.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(
        start.elapsed() > Duration::from_secs(90),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn further_connections_wait_for_a_place() {
    let limits = Limits {
        max_connections: 1,
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    let first = server.client(ask("/never")).await;
    let mut second = server.client(ask("/small")).await;
    let mut answer = [0; 12];
    timeout(MOMENT, second.read_exact(&mut answer))
        .await
        .unwrap_err();
    drop(first);
    timeout(LONG, second.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
}
