//! Reads a request's body within its limits.
//!
//! An over-long body is read to its end and thrown away: closing a connection with unread bytes
//! resets it, and the client would never see the answer.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use flowerbed_protocol::{Error as RequestError, ErrorKind, limits};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::Error;

/// Bodies that all requests together may hold.
const MAX_HELD_BYTES: usize = 8 * limits::MAX_BODY_BYTES;
/// Of a body that will be refused, this much is read before the answer is sent anyway.
const MAX_DISCARDED_BYTES: u64 = 16 * limits::MAX_BODY_BYTES as u64;
/// Bodies that small have memory of their own, which large ones cannot take.
const MAX_SMALL_BYTES: usize = 64 * KIB;
const SMALL_HELD_BYTES: usize = 32 * 1_024 * KIB;
/// A body that makes no progress for so long has been given up by its sender, or is meant to hold
/// memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(15);
/// For reading what will be refused.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(20);
const KIB: usize = 1_024;

/// Memory for request bodies; what is read holds its share until it is dropped.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    small: Arc<Semaphore>, // KiB
    large: Arc<Semaphore>, // KiB
}

/// A whole body and its share of the memory.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) bytes: Bytes,
    _share: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    pub(crate) fn new() -> Self {
        Self {
            small: Arc::new(Semaphore::new(SMALL_HELD_BYTES / KIB)),
            large: Arc::new(Semaphore::new(MAX_HELD_BYTES / KIB)),
        }
    }

    /// Reads a body that is declared as JSON, or says what is wrong with it.
    pub(crate) async fn read_json(&self, request: Request) -> Result<Held, Error> {
        let (head, body) = request.into_parts();
        if let Some(found) = foreign_encoding(&head.headers) {
            discard(&head.headers, body, 0).await;
            return Err(Error::ContentEncoding(found));
        }
        if let Some(found) = foreign_media_type(&head.headers) {
            discard(&head.headers, body, 0).await;
            return Err(Error::MediaType(found));
        }
        let declared = declared_length(&head.headers);
        if declared.is_some_and(|length| length > limits::MAX_BODY_BYTES as u64) {
            let num_bytes = discard(&head.headers, body, 0).await;
            return Err(too_large(declared.unwrap_or(num_bytes)).into());
        }
        self.collect(&head.headers, body).await
    }

    async fn collect(&self, headers: &HeaderMap, mut body: Body) -> Result<Held, Error> {
        // What was read of a body that is refused is gone before the rest of it is awaited: it has no
        // share any more.
        match self.read(declared_length(headers), &mut body).await? {
            Read::Whole(held) => Ok(held),
            Read::TooLarge(num_read) => {
                let num_bytes = discard(headers, body, num_read).await;
                Err(too_large(num_bytes).into())
            }
            Read::NoRoom(num_read) => {
                discard(headers, body, num_read).await;
                Err(full().into())
            }
        }
    }

    async fn read(&self, declared: Option<u64>, body: &mut Body) -> Result<Read, RequestError> {
        let mut bytes = Vec::new();
        let mut share: Option<OwnedSemaphorePermit> = None;
        let is_small = declared.is_some_and(|declared| declared <= MAX_SMALL_BYTES as u64);
        let memory = if is_small { &self.small } else { &self.large };
        loop {
            let frame = timeout(STALL_TIMEOUT, body.frame()).await.map_err(|_| {
                RequestError::new(ErrorKind::InvalidInput, "the body stopped before its end")
            })?;
            let Some(frame) = frame else { break };
            let frame = frame.map_err(|_| {
                RequestError::new(ErrorKind::InvalidInput, "the body ended before its end")
            })?;
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let num_bytes = bytes.len() + data.len();
            if num_bytes > limits::MAX_BODY_BYTES {
                return Ok(Read::TooLarge(num_bytes as u64));
            }
            let held_kib = share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let missing_kib = num_bytes.div_ceil(KIB).saturating_sub(held_kib);
            let more = Arc::clone(memory)
                .try_acquire_many_owned(u32::try_from(missing_kib).unwrap_or(u32::MAX));
            match (more, &mut share) {
                (Ok(more), Some(share)) => share.merge(more),
                (Ok(more), None) => share = Some(more),
                (Err(_), _) => return Ok(Read::NoRoom(num_bytes as u64)),
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Read::Whole(Held {
            bytes: bytes.into(),
            _share: share,
        }))
    }
}

/// What became of a body.
enum Read {
    Whole(Held),
    /// After so many bytes.
    TooLarge(u64),
    /// After so many bytes.
    NoRoom(u64),
}

/// Reads the rest of a body that is not wanted; gives the bytes of it, `num_read` included.
pub(crate) async fn discard(headers: &HeaderMap, mut body: Body, num_read: u64) -> u64 {
    let mut num_bytes = num_read;
    // A client that asks before it sends has sent nothing yet, and will not.
    if headers.contains_key(EXPECT) && num_read == 0 {
        return num_bytes;
    }
    let until = Instant::now() + DISCARD_TIMEOUT;
    while num_bytes < MAX_DISCARDED_BYTES {
        let Ok(Some(Ok(frame))) = timeout_at(until, body.frame()).await else {
            break;
        };
        num_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
    num_bytes
}

/// What `Content-Length` says, if it says something.
pub(crate) fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// How the body is compressed, if it is.
fn foreign_encoding(headers: &HeaderMap) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(CONTENT_ENCODING)?.as_bytes()).into_owned();
    (!value.trim().eq_ignore_ascii_case("identity")).then(|| crate::wire::echo(&value))
}

/// The content type, if it is there and not JSON.
fn foreign_media_type(headers: &HeaderMap) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(CONTENT_TYPE)?.as_bytes()).into_owned();
    let media = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    let is_json = media == "application/json"
        || (media.starts_with("application/") && media.ends_with("+json"));
    (!is_json).then(|| crate::wire::echo(&value))
}

fn too_large(num_bytes: u64) -> RequestError {
    let limit = limits::MAX_BODY_BYTES;
    let message =
        format!("the body has {num_bytes} bytes, the limit is {limit}: split the request");
    RequestError::new(ErrorKind::TooLarge, message)
}

fn full() -> RequestError {
    let message = "the gateway holds as many request bodies as it may; try again";
    RequestError::new(ErrorKind::Overloaded, message).after(Duration::from_secs(1))
}
