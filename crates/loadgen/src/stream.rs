//! Runs one stream against its schedule.
//!
//! A thread of its own keeps the schedule: tokio's timer counts in whole milliseconds, which is as
//! long as a short query takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::arrivals::{Arrivals, Pace};
use crate::check::check;
use crate::connection::{Connections, Response};
use crate::options::StreamOptions;
use crate::plan::Item;
use crate::report::{Answered, End, Report, Tally, Times};

/// Arrivals that wait to be begun; if more are due, the client is late, and says so.
const MAX_DUE: usize = 4_096;
const RETRYABLE: [u16; 2] = [429, 503];

/// One stream that runs.
#[derive(Debug)]
struct Stream {
    options: StreamOptions,
    items: Arc<[Item]>,
    connections: Connections,
    tally: Mutex<Tally>,
}

/// Sends the items in turn from `start` on; returns when everything sent has ended.
pub async fn run(
    options: StreamOptions,
    items: Arc<[Item]>,
    target: SocketAddr,
    start: Instant,
) -> Report {
    let stream = Arc::new(Stream {
        connections: Connections::new(target),
        tally: Mutex::new(Tally::new(&options.name, start)),
        items,
        options,
    });
    match stream.options.pace {
        Pace::Callers(num_callers) => closed(&stream, num_callers, start).await,
        pace => {
            if let Some(arrivals) = Arrivals::new(pace) {
                open(&stream, arrivals, start).await;
            }
        }
    }
    let counts = stream.connections.counts();
    let empty = Tally::new(&stream.options.name, start);
    std::mem::replace(&mut *stream.tally.lock(), empty).finish(counts)
}

async fn closed(stream: &Arc<Stream>, num_callers: usize, start: Instant) {
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..num_callers {
        let (stream, next) = (Arc::clone(stream), Arc::clone(&next));
        callers.spawn(async move {
            sleep_until(start).await;
            let end = start + stream.options.length;
            while Instant::now() < end {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= stream.options.max_requests {
                    return;
                }
                stream.one(index, Instant::now()).await;
            }
        });
    }
    while callers.join_next().await.is_some() {}
}

async fn open(stream: &Arc<Stream>, arrivals: Arrivals, start: Instant) {
    let (due, mut arrived) = mpsc::channel(MAX_DUE);
    let length = stream.options.length;
    let times = arrivals
        .take_while(move |at| *at < length)
        .take(stream.options.max_requests);
    let pacer = thread::spawn(move || {
        for at in times {
            let intended = start + at;
            thread::sleep(intended.saturating_duration_since(Instant::now()));
            if due.blocking_send(intended).is_err() {
                return;
            }
        }
    });
    let places = Arc::new(Semaphore::new(stream.options.max_open));
    let mut requests = JoinSet::new();
    let mut index = 0;
    while let Some(intended) = arrived.recv().await {
        while requests.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            stream.tally.lock().not_sent();
            continue;
        };
        let stream = Arc::clone(stream);
        requests.spawn(async move {
            stream.one(index, intended).await;
            drop(place);
        });
        index += 1;
    }
    while requests.join_next().await.is_some() {}
    drop(pacer.join());
}

// === impl Stream ===

impl Stream {
    /// One request, from its intended time to its end.
    async fn one(&self, index: usize, intended: Instant) {
        let item = &self.items[index % self.items.len()];
        let patience = item.hang_up_after.unwrap_or(self.options.timeout);
        let sent = Instant::now();
        let result = timeout(patience, self.connections.send(item)).await;
        let times = Times {
            intended,
            sent,
            ended: Instant::now(),
        };
        let end = match result {
            Ok(Ok(response)) => End::Answered(self.judge(item, &response)),
            Ok(Err(step)) => End::Failed(step),
            Err(_) if item.hang_up_after.is_some() => End::HungUp,
            Err(_) => End::Failed("timeout"),
        };
        self.tally.lock().add(times, end);
    }

    fn judge(&self, item: &Item, response: &Response) -> Answered {
        let status = response.status.as_u16();
        let checked = if status == 200 {
            check(&response.body, item, self.options.check)
        } else if RETRYABLE.contains(&status) && !response.headers.contains_key(RETRY_AFTER) {
            Err(format!("{status} without Retry-After"))
        } else {
            Ok(0)
        };
        let micros = |name| header_number(&response.headers, name);
        Answered {
            status,
            is_expected: item.expect.contains(&status),
            checked,
            num_rows: item.num_rows,
            server_us: micros("x-flowerbed-queue-us").zip(micros("x-flowerbed-step-us")),
        }
    }
}

fn header_number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}
