//! Long documents never hold up health checks or short queries.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use serde_json::json;
use support::Ivy;
use support::tulip::Tulip;

#[test]
fn in_12_huge_texts_hold_up_neither_health_nor_short_queries() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    // No spaces: these are tokenized whole.
    let huge = json!({"input": vec!["漢字a".repeat(100_000); 4]});
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(ivy.embed(&huge).status, 200);
                }
            });
        }
        thread::sleep(Duration::from_millis(300));
        let mut times: Vec<Duration> = (0..40)
            .map(|_| {
                let started = SystemTime::now();
                assert_eq!(ivy.client.get("/health").status, 200);
                assert_eq!(
                    ivy.embed(&json!({"input": "five words of a query"})).status,
                    200
                );
                started.elapsed().unwrap()
            })
            .collect();
        is_over.store(true, Ordering::Relaxed);
        times.sort();
        assert!(
            times[20] < Duration::from_millis(100),
            "median {:?}",
            times[20]
        );
    });
}
