//! Logs of the core, on stderr.

use std::collections::HashMap;
use std::io::IsTerminal as _;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tracing_subscriber::EnvFilter;

use crate::stderr::Stderr;

/// Sends the core's logs to stderr as `text` or `json`. Later calls change nothing.
#[pyfunction]
pub(crate) fn init_logging(log_format: &str, level: &str) -> PyResult<()> {
    // Other crates tell their inside at lower levels; ours alone are asked for it.
    let filter = EnvFilter::try_new(format!("error,flowerbed={level}"))
        .map_err(|error| PyValueError::new_err(format!("log level {level:?}: {error}")))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false) // where nobody reads stderr any more, telling so would panic
        .with_writer(|| Stderr);
    // An error means that a subscriber is set already, which the docstring promises to accept.
    let _ = match log_format {
        "json" => builder
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .try_init(),
        "text" => builder.with_target(false).try_init(),
        other => {
            let message = format!("log format {other:?} is not one of text, json");
            return Err(PyValueError::new_err(message));
        }
    };
    std::panic::set_hook(Box::new(|panic| {
        // Its message may quote a text.
        let location = panic.location().map(ToString::to_string);
        tracing::error!(target: "flowerbed", location, "a thread panicked");
    }));
    Ok(())
}

/// `version`, `profile` and `source_hash` of the compiled core.
#[pyfunction]
pub(crate) fn build_info() -> HashMap<&'static str, &'static str> {
    HashMap::from([
        ("version", env!("CARGO_PKG_VERSION")),
        ("profile", env!("FLOWERBED_PROFILE")),
        ("source_hash", env!("FLOWERBED_SOURCE_HASH")),
    ])
}
