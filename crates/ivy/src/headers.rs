//! Request headers that steer a request: lane, time, trace.

use std::time::Duration;

use flowerbed_protocol::v1::Lane;
use flowerbed_protocol::{Error, limits, trace};
use http::{HeaderMap, HeaderValue};
use tonic::metadata::{Ascii, MetadataValue};

const LANE: &str = "x-flowerbed-lane";
const TIMEOUT_MS: &str = "x-flowerbed-timeout-ms";

/// Name of a lane in headers and metrics.
pub(crate) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Online => "online",
        Lane::Scoring => "scoring",
        Lane::Bulk | Lane::Unspecified => "bulk",
    }
}

/// The one value of a header, if it is there; of two, neither can be taken for what was asked.
fn only<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h HeaderValue>, Error> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (_, Some(_)) => {
            let message = format!("{name} must be given once, not several times");
            Err(Error::invalid(name, message))
        }
        (value, None) => Ok(value),
    }
}

/// The lane that a header asks for, if there is one.
pub(crate) fn asked_lane(headers: &HeaderMap) -> Result<Option<Lane>, Error> {
    let Some(value) = only(headers, LANE)? else {
        return Ok(None);
    };
    match value.as_bytes() {
        b"online" => Ok(Some(Lane::Online)),
        b"scoring" => Ok(Some(Lane::Scoring)),
        b"bulk" => Ok(Some(Lane::Bulk)),
        _ => Err(Error::invalid(
            LANE,
            format!("{LANE} must be online, scoring or bulk"),
        )),
    }
}

/// The lane of an embedding request of this cost. A header may lower it, never raise it.
pub(crate) fn embedding_lane(cost: u64, asked: Option<Lane>) -> Lane {
    let own = if cost <= limits::MAX_ONLINE_COST {
        Lane::Online
    } else {
        Lane::Bulk
    };
    // The proto numbers lanes from the first served to the last.
    asked
        .filter(|asked| *asked as i32 > own as i32)
        .unwrap_or(own)
}

/// The time a request may take: what its header asks, at most `longest`.
pub(crate) fn timeout(headers: &HeaderMap, longest: Duration) -> Result<Duration, Error> {
    let Some(value) = only(headers, TIMEOUT_MS)? else {
        return Ok(longest);
    };
    let milliseconds = value
        .to_str()
        .ok()
        .and_then(|text| text.parse::<u64>().ok());
    match milliseconds {
        Some(milliseconds) if milliseconds > 0 => {
            Ok(Duration::from_millis(milliseconds).min(longest))
        }
        _ => {
            let message = format!("{TIMEOUT_MS} must be a positive integer of milliseconds");
            Err(Error::invalid(TIMEOUT_MS, message))
        }
    }
}

/// The trace context, passed on as it came; a header that is none is ignored.
pub(crate) fn traceparent(headers: &HeaderMap) -> Option<MetadataValue<Ascii>> {
    let value = traced(headers)?;
    MetadataValue::try_from(value).ok()
}

/// The same as text, for the log.
pub(crate) fn traced(headers: &HeaderMap) -> Option<&str> {
    trace::traceparent(headers.get(trace::TRACEPARENT)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_lowers_the_lane_and_never_raises_it() {
        let small = limits::MAX_ONLINE_COST;
        assert_eq!(embedding_lane(small, None), Lane::Online);
        assert_eq!(embedding_lane(small, Some(Lane::Bulk)), Lane::Bulk);
        assert_eq!(embedding_lane(small + 1, None), Lane::Bulk);
        assert_eq!(embedding_lane(small + 1, Some(Lane::Online)), Lane::Bulk);
    }
}
