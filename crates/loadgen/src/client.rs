//! Sends one request to whatever is loaded, and judges its answer.

use flowerbed_protocol::v1::RunResponse;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, RETRY_AFTER};

use crate::check::{Check, check, check_raw, check_run};
use crate::connection::{Connections, Response};
use crate::options::{Error, Target};
use crate::plan::Item;
use crate::report::Answered;
use crate::worker::Worker;

const RETRYABLE: [u16; 2] = [429, 503];

/// Of one stream.
#[derive(Debug)]
pub enum Client {
    /// Speaks HTTP.
    Gateway(Connections),
    /// Speaks gRPC.
    Worker(Worker),
}

/// A whole answer.
#[derive(Debug)]
pub enum Reply {
    /// Of a gateway.
    Gateway(Response),
    /// Of a worker.
    Worker(RunResponse),
}

impl Client {
    /// Of a gateway nothing is opened yet; a worker is asked what it serves.
    pub async fn open(target: Target, items: &[Item]) -> Result<Self, Error> {
        let is_worker = matches!(target, Target::Worker(_));
        if let Some(index) = items
            .iter()
            .position(|item| item.run.is_some() != is_worker)
        {
            let message = format!("request {index} is not for such a target: a worker takes run");
            return Err(Error::Plan(message));
        }
        match target {
            Target::Gateway(address) => Ok(Self::Gateway(Connections::new(address))),
            Target::Worker(address) => Worker::connect(address).await.map(Self::Worker),
        }
    }

    /// Connections opened, and how many of them broke.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        match self {
            Self::Gateway(connections) => connections.counts(),
            Self::Worker(_) => (1, 0),
        }
    }

    /// Sends a request and reads its whole answer. Dropping the future hangs up. The error is the
    /// step at which it failed.
    pub async fn send(&self, item: &Item) -> Result<Reply, &'static str> {
        match self {
            Self::Gateway(connections) => connections.send(item).await.map(Reply::Gateway),
            Self::Worker(worker) => worker.send(item).await.map(Reply::Worker),
        }
    }
}

impl Reply {
    /// Whether it is what the plan expects.
    #[must_use]
    pub fn judge(&self, item: &Item, how: Check) -> Answered {
        let (status, checked, server_us) = match self {
            Self::Gateway(response) => {
                let micros = |name| header_number(&response.headers, name);
                let server_us = micros("x-flowerbed-queue-us").zip(micros("x-flowerbed-step-us"));
                let status = response.status.as_u16();
                (status, judge_http(status, response, item, how), server_us)
            }
            Self::Worker(response) => {
                let stats = response.stats.as_ref();
                let server_us = stats.map(|stats| (stats.queue_us, stats.step_us));
                (200, check_run(response, item, how), server_us)
            }
        };
        Answered {
            status,
            is_expected: item.expect.contains(&status),
            checked,
            num_rows: item.num_rows,
            server_us,
        }
    }
}

fn judge_http(status: u16, response: &Response, item: &Item, how: Check) -> Result<u64, String> {
    let headers = &response.headers;
    if RETRYABLE.contains(&status) && !headers.contains_key(RETRY_AFTER) {
        return Err(format!("{status} without Retry-After"));
    }
    if status != 200 {
        return Ok(0);
    }
    if headers
        .get(CONTENT_TYPE)
        .is_some_and(|media| media == "application/octet-stream")
    {
        check_raw(&response.body, item, how)?;
        return Ok(header_number(headers, "x-flowerbed-tokens").unwrap_or(0));
    }
    check(&response.body, item, how)
}

fn header_number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
