//! Kinds of values that the settings of both sides hold.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A value that is never printed.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Reads a time that may be zero, given in whole milliseconds.
///
/// # Errors
/// The value is no such number.
pub fn millis<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_millis)
}

/// Reads a time limit, given in seconds: positive and finite.
///
/// # Errors
/// The value is no such number.
pub fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| de::Error::custom("a timeout must be a positive number of seconds"))
}
