//! PyO3 module `flowerbed._core`: thin newtypes over Ivy and Tulip. No logic.
//!
//! Rust never calls Python. Every wait leaves the interpreter (`Python::detach`) and comes back
//! every [`SIGNAL_POLL`] to let signal handlers run.

mod py_batch;
mod py_gateway;
mod py_logging;
mod py_server;
mod stderr;

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

/// How long a signal may wait for its handler.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// `OSError` with the number by which Python tells errors apart; a wrapped error has lost its own.
fn os_error(error: &io::Error) -> PyErr {
    let number = match error.kind() {
        io::ErrorKind::AddrInUse => Some(Errno::EADDRINUSE),
        io::ErrorKind::AddrNotAvailable => Some(Errno::EADDRNOTAVAIL),
        io::ErrorKind::PermissionDenied => Some(Errno::EACCES),
        _ => None,
    };
    let message = error.to_string();
    match number {
        Some(number) => PyOSError::new_err((number as i32, message)),
        None => PyOSError::new_err(message),
    }
}

/// The Rust core of flowerbed.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::py_batch::PyBatch;
    #[pymodule_export]
    use super::py_gateway::PyGateway;
    #[pymodule_export]
    use super::py_logging::{build_info, init_logging};
    #[pymodule_export]
    use super::py_server::PyInferenceServer;
}
