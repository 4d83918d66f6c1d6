//! Runs one stream against its schedule.
//!
//! A thread of its own keeps the schedule: tokio's timer counts in whole milliseconds, which is as
//! long as a short query takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::arrivals::{Arrivals, Pace};
use crate::client::Client;
use crate::options::StreamOptions;
use crate::plan::Item;
use crate::report::{End, Report, Tally, Times};

/// Arrivals that wait to be begun; if more are due, the client is late, and says so.
const MAX_DUE: usize = 4_096;

/// One stream that runs.
#[derive(Debug)]
struct Stream {
    options: StreamOptions,
    items: Arc<[Item]>,
    client: Arc<Client>,
    tally: Mutex<Tally>,
}

/// Sends the items in turn from `start` on; returns when everything sent has ended.
pub async fn run(
    options: StreamOptions,
    items: Arc<[Item]>,
    client: Arc<Client>,
    start: Instant,
) -> Report {
    let stream = Arc::new(Stream {
        client,
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
    let counts = stream.client.counts();
    let empty = Tally::new(&stream.options.name, start);
    std::mem::replace(&mut *stream.tally.lock(), empty).finish(counts)
}

/// Sends so many requests at once and waits for their ends, whatever these are.
pub async fn warm_up(client: &Arc<Client>, items: &Arc<[Item]>, count: usize) {
    let mut requests = JoinSet::new();
    for index in 0..count {
        let (client, items) = (Arc::clone(client), Arc::clone(items));
        requests.spawn(async move { client.send(&items[index % items.len()]).await.is_ok() });
    }
    requests.join_all().await;
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
        let result = timeout(patience, self.client.send(item)).await;
        let times = Times {
            intended,
            sent,
            ended: Instant::now(),
        };
        let end = match result {
            Ok(Ok(reply)) => End::Answered(reply.judge(item, self.options.check)),
            Ok(Err(step)) => End::Failed(step),
            Err(_) if item.hang_up_after.is_some() => End::HungUp,
            Err(_) => End::Failed("timeout"),
        };
        self.tally.lock().add(times, end);
    }
}
