//! gRPC's own deadline header, parsed into an instant that the scheduler can compare.

use std::time::Duration;

use axum::extract::Request;
use tokio::time::Instant;

const HEADER: &str = "grpc-timeout";
/// A timeout of centuries means no hurry.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);

/// When a call must be answered; an extension of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(pub(crate) Instant);

/// Sets the deadline of a call whose head came in now. Without a header, `default` from now.
pub(crate) fn set(mut request: Request, default: Duration) -> Request {
    let header = request
        .headers()
        .get(HEADER)
        .and_then(|value| value.to_str().ok());
    let timeout = header.and_then(parse).unwrap_or(default).min(LONGEST);
    request
        .extensions_mut()
        .insert(Deadline(Instant::now() + timeout));
    request
}

/// Parses "TimeoutValue TimeoutUnit" of the gRPC protocol: at most eight digits and one letter.
fn parse(header: &str) -> Option<Duration> {
    let (digits, unit) = header.split_at_checked(header.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3_600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_the_protocol_is_understood() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(parse("1500m"), Some(Duration::from_millis(1_500)));
        assert_eq!(parse("7u"), Some(Duration::from_micros(7)));
        assert_eq!(parse("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn what_is_no_timeout_is_refused() {
        for header in ["", "S", "5", "-1S", "1.5S", "123456789S", "1s ", "é"] {
            assert_eq!(parse(header), None, "{header:?}");
        }
    }
}
