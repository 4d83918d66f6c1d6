//! Metrics have buckets and bounded labels.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::json;
use support::tulip::Tulip;
use support::{Ivy, eventually};

#[test]
fn requests_are_counted_by_model_route_lane_and_code() {
    let tulip = Tulip::start();
    let ivy = Ivy::over(&[&tulip]);
    assert_eq!(
        ivy.embed(&json!({"input": ["a", "b ".repeat(500)]})).status,
        200
    );
    assert_eq!(
        ivy.embed(&json!({"input": "a", "model": "made-up-1"}))
            .status,
        404
    );
    ivy.client.get("/made-up-2");
    let text = String::from_utf8(ivy.client.get("/metrics").body).unwrap();
    for line in [
        "flowerbed_requests_total{model=\"flowerbed/tiny-bert\",route=\"/v1/embeddings\",\
            lane=\"online\",code=\"200\"} 1",
        "flowerbed_requests_total{model=\"unknown\",route=\"/v1/embeddings\",\
            lane=\"none\",code=\"404\"} 1",
        "flowerbed_requests_total{model=\"unknown\",route=\"unknown\",\
            lane=\"none\",code=\"404\"} 1",
        "flowerbed_truncated_total 1",
        "flowerbed_input_tokens_total 131",
        "flowerbed_tokenize_seconds_bucket{le=\"60\"} 1",
        "# TYPE flowerbed_request_seconds histogram",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("made-up"));
}

#[test]
fn a_scrape_holds_the_metrics_of_every_live_worker() {
    let tulips = [Tulip::start(), Tulip::start()];
    let metrics =
        "# HELP steps_total Steps.\n# TYPE steps_total counter\nsteps_total{mode=\"eager\"} 7\n";
    for tulip in &tulips {
        tulip.change(|behaviour| metrics.clone_into(&mut behaviour.metrics));
    }
    let ivy = Ivy::over(&[&tulips[0], &tulips[1]]);
    let scrape = || String::from_utf8(ivy.client.get("/metrics").body).unwrap();
    let sample = |tulip: &Tulip| {
        let replica = &tulip.address;
        format!("steps_total{{replica=\"{replica}\",mode=\"eager\"}} 7")
    };
    eventually("both are up and scraped", || {
        let text = scrape();
        tulips.iter().all(|tulip| text.contains(&sample(tulip)))
    });
    assert_eq!(scrape().matches("# TYPE steps_total").count(), 1);
    let [left, right] = tulips;
    let gone = sample(&left);
    drop(left);
    eventually("a dead worker's are gone", || !scrape().contains(&gone));
    assert!(scrape().contains(&sample(&right)));
}
