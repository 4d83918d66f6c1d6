//! W3C trace context, as far as both sides need it: one header that is passed on and logged.

/// The header, and the metadata key between Ivy and Tulip.
pub const TRACEPARENT: &str = "traceparent";

/// Bytes of `version-trace-parent-flags` in version 00.
const NUM_BYTES: usize = 55;

/// The value of a `traceparent` header, if it is one. What is none must be ignored, not refused.
///
/// A later version may append parts, which are kept.
#[must_use]
pub fn traceparent(value: &[u8]) -> Option<&str> {
    let value = std::str::from_utf8(value).ok()?;
    let (known, rest) = value.split_at_checked(NUM_BYTES)?;
    let parts: Vec<&str> = known.split('-').collect();
    let [version, trace, parent, flags] = parts[..] else {
        return None;
    };
    let is_hex = |part: &str, num_digits: usize| {
        part.len() == num_digits
            && part
                .bytes()
                .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let is_set = |part: &str| part.bytes().any(|byte| byte != b'0');
    let has_valid_rest = rest.is_empty()
        || (version != "00"
            && rest.starts_with('-')
            && rest.len() < NUM_BYTES
            && rest.bytes().all(|byte| byte.is_ascii_graphic()));
    let is_valid = is_hex(version, 2)
        && version != "ff"
        && is_hex(trace, 32)
        && is_set(trace)
        && is_hex(parent, 16)
        && is_set(parent)
        && is_hex(flags, 2)
        && has_valid_rest;
    is_valid.then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_context_is_taken_as_it_came() {
        assert_eq!(traceparent(VALID.as_bytes()), Some(VALID));
        let later = VALID.replacen("00", "01", 1) + "-more";
        assert_eq!(traceparent(later.as_bytes()), Some(later.as_str()));
    }

    #[test]
    fn what_is_no_trace_context_is_ignored() {
        for bad in [
            String::new(),
            "a text".to_owned(),
            VALID.to_uppercase(),
            VALID.replacen("00", "ff", 1),
            format!("{VALID}-more"),
            format!("{VALID} "),
            VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            VALID.replace('-', "_"),
            "é".repeat(40),
        ] {
            assert_eq!(traceparent(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
