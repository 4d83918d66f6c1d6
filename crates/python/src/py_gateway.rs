//! `Gateway`: Ivy, running on its own threads.

use flowerbed_ivy::{Gateway, GatewayConfig, Running};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::OnceLock;

use crate::{SIGNAL_POLL, os_error};

/// See `_core.pyi`.
#[pyclass(name = "Gateway", module = "flowerbed._core", frozen)]
pub(crate) struct PyGateway {
    config: GatewayConfig,
    running: OnceLock<Running>,
}

// === impl PyGateway ===

#[pymethods]
impl PyGateway {
    #[new]
    fn new(config: &str) -> PyResult<Self> {
        let config = serde_json::from_str(config)
            .map_err(|error| PyValueError::new_err(format!("gateway config: {error}")))?;
        Ok(Self {
            config,
            running: OnceLock::new(),
        })
    }

    fn start(&self, py: Python<'_>) -> PyResult<String> {
        let running = py
            .detach(|| Gateway::start(self.config.clone()))
            .map_err(|error| os_error(&error))?;
        let address = running.address().to_owned();
        self.running
            .set(running)
            .map_err(|_| PyRuntimeError::new_err("the gateway was started already"))?;
        Ok(address)
    }

    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        let running = self.running()?;
        while !py.detach(|| running.wait(SIGNAL_POLL)) {
            py.check_signals()?;
        }
        Ok(())
    }

    #[getter]
    fn was_cut(&self) -> PyResult<bool> {
        Ok(self.running()?.was_cut())
    }

    fn drain(&self) -> PyResult<()> {
        self.running()?.drain();
        Ok(())
    }

    fn stop(&self, py: Python<'_>) {
        if let Some(running) = self.running.get() {
            py.detach(|| running.stop());
        }
    }
}

impl PyGateway {
    fn running(&self) -> PyResult<&Running> {
        self.running
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("call start() first"))
    }
}
