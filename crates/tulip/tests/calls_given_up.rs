//! A gateway whose clients hang up gives up calls that its worker has not looked at yet.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::time::Duration;

use support::Worker;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const LAST: u32 = 201;
const HEADERS: u8 = 1;

/// The head of a call.
fn ask(stream: u32) -> Vec<u8> {
    let mut frame = b"\0\0\x0d\x01\x05".to_vec();
    frame.extend(stream.to_be_bytes());
    frame.extend(b"\x82\x86\x04\x06/small\x41\x01a");
    frame
}

fn give_up(stream: u32) -> Vec<u8> {
    let mut frame = b"\0\0\x04\x03\0".to_vec();
    frame.extend(stream.to_be_bytes());
    frame.extend(8_u32.to_be_bytes());
    frame
}

/// Kind and stream of the next frame.
async fn next_frame(client: &mut TcpStream) -> (u8, u32) {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.unwrap();
    let [high, middle, low, kind, _, stream @ ..] = head;
    let mut body = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    client.read_exact(&mut body).await.unwrap();
    (kind, u32::from_be_bytes(stream))
}

#[tokio::test]
async fn calls_that_are_given_up_at_once_end_no_other_of_their_connection() {
    let worker = Worker::start(|c| c["listen"] = "127.0.0.1:0".into(), Duration::ZERO);
    let mut client = TcpStream::connect(worker.tulip.address()).await.unwrap();
    let mut bytes = HELLO.to_vec();
    for stream in (1..LAST).step_by(2) {
        bytes.extend(ask(stream));
        bytes.extend(give_up(stream));
    }
    bytes.extend(ask(LAST));
    client.write_all(&bytes).await.unwrap();
    let answered = async { while next_frame(&mut client).await != (HEADERS, LAST) {} };
    timeout(Duration::from_secs(10), answered).await.unwrap();
    worker.stop().await;
}
