//! `InferenceServer`: Tulip, pulled from by the thread that owns the device.

use flowerbed_tulip::{Pull, StepFault, Tulip, WorkerConfig};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::OnceLock;
use std::time::Duration;

use crate::py_batch::{PyBatch, rows_of};
use crate::{SIGNAL_POLL, os_error};

/// See `_core.pyi`.
#[pyclass(name = "InferenceServer", module = "flowerbed._core", frozen)]
pub(crate) struct PyInferenceServer {
    config: WorkerConfig,
    tulip: OnceLock<Tulip>,
}

// === impl PyInferenceServer ===

#[pymethods]
impl PyInferenceServer {
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config = serde_json::from_str(config)
            .map_err(|error| PyValueError::new_err(format!("worker config: {error}")))?;
        Ok(Self {
            config,
            tulip: OnceLock::new(),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<String> {
        let tulip = py
            .detach(|| Tulip::start(self.config.clone(), kill_this_process))
            .map_err(|error| os_error(&error))?;
        let address = tulip.address().to_owned();
        self.tulip
            .set(tulip)
            .map_err(|_| PyRuntimeError::new_err("the server was started already"))?;
        Ok(address)
    }

    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        let tulip = self.tulip()?;
        loop {
            match py.detach(|| tulip.next_batch(SIGNAL_POLL)) {
                Pull::Batch(batch) => return Ok(Some(PyBatch(*batch))),
                Pull::Drained => return Ok(None),
                Pull::Nothing => py.check_signals()?,
            }
        }
    }

    fn launched(&self, py: Python<'_>, batch_id: u64, result: &Bound<'_, PyAny>) -> PyResult<()> {
        let mode: String = result.getattr("mode")?.extract()?;
        let padding_tokens: u64 = result.getattr("padding_tokens")?.extract()?;
        let rows = rows_of(result)?;
        let tulip = self.tulip()?;
        known(
            batch_id,
            py.detach(|| tulip.launched(batch_id, rows, mode, padding_tokens)),
        )
    }

    #[pyo3(signature = (batch_id, reason, *, fault))]
    fn failed(&self, py: Python<'_>, batch_id: u64, reason: String, fault: &str) -> PyResult<()> {
        let fault = match fault {
            "input" => StepFault::Input,
            "memory" => StepFault::Memory,
            "device" => StepFault::Device,
            other => {
                let message = format!("fault {other:?} is not one of input, memory, device");
                return Err(PyValueError::new_err(message));
            }
        };
        let tulip = self.tulip()?;
        known(
            batch_id,
            py.detach(|| tulip.failed(batch_id, reason, fault)),
        )
    }

    #[getter]
    fn is_faulted(&self) -> PyResult<bool> {
        Ok(self.tulip()?.is_faulted())
    }

    #[getter]
    fn was_cut(&self) -> PyResult<bool> {
        Ok(self.tulip()?.was_cut())
    }

    fn drain(&self, timeout_s: f64) -> PyResult<()> {
        let timeout = Duration::try_from_secs_f64(timeout_s)
            .map_err(|error| PyValueError::new_err(format!("timeout_s: {error}")))?;
        self.tulip()?.drain(timeout);
        Ok(())
    }

    fn stop(&self, py: Python<'_>) {
        if let Some(tulip) = self.tulip.get() {
            py.detach(|| tulip.stop());
        }
    }
}

impl PyInferenceServer {
    fn tulip(&self) -> PyResult<&Tulip> {
        self.tulip
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("call start() first"))
    }
}

/// What hangs holds threads that no exit would end, and may hold the interpreter.
fn kill_this_process() {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
}

fn known(batch_id: u64, is_known: bool) -> PyResult<()> {
    if is_known {
        Ok(())
    } else {
        Err(PyRuntimeError::new_err(format!(
            "batch {batch_id} is unknown or was answered already"
        )))
    }
}
