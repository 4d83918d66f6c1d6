//! Metrics have buckets and bounded labels.

#![allow(missing_docs, clippy::unwrap_used, reason = "tests")]

mod support;

use serde_json::json;
use support::Ivy;
use support::tulip::Tulip;

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
        "flowerbed_queue_seconds_bucket{lane=\"online\",le=\"0.0005\"} 1",
        "flowerbed_step_seconds_count{mode=\"replay\"} 1",
        "# TYPE flowerbed_request_seconds histogram",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("made-up"));
}
