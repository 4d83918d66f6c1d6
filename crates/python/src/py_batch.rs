//! A batch on its way to Python, and rows on their way back.

use bytes::Bytes;
use flowerbed_protocol::packed;
use flowerbed_tulip::PendingRows;
use flowerbed_tulip::batch::Batch;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// Sequences that one step runs together. See `_core.pyi`.
#[pyclass(name = "Batch", module = "flowerbed._core", frozen)]
pub(crate) struct PyBatch(pub(crate) Batch);

// === impl PyBatch ===

#[pymethods]
impl PyBatch {
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    #[getter]
    fn head(&self) -> &'static str {
        self.0.head.name()
    }

    #[getter]
    fn stream(&self) -> &'static str {
        self.0.plan.stream.name()
    }

    #[getter]
    fn num_tokens(&self) -> usize {
        self.0.ids.len()
    }

    #[getter]
    fn num_sequences(&self) -> usize {
        self.0.num_sequences()
    }

    #[getter]
    fn num_segments(&self) -> usize {
        self.0.segments.len() / 2
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    #[getter]
    fn max_seqlen(&self) -> u32 {
        self.0.max_seqlen
    }

    #[getter]
    fn num_result_bytes(&self) -> usize {
        self.0.num_result_bytes
    }

    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        column(py, &self.0.ids)
    }

    fn cu_seqlens<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        column(py, &self.0.cu_seqlens)
    }

    fn pair_starts<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyByteArray>> {
        self.0.pair_starts.as_ref().map(|values| column(py, values))
    }

    fn segments<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        column(py, &self.0.segments)
    }

    fn row_formats<'py>(&self, py: Python<'py>) -> Bound<'py, PyByteArray> {
        column(py, &self.0.row_formats)
    }

    fn __repr__(&self) -> String {
        format!(
            "Batch(id={}, head={:?}, num_sequences={}, num_tokens={})",
            self.0.id,
            self.0.head.name(),
            self.0.num_sequences(),
            self.0.ids.len()
        )
    }
}

/// Values below 2^31 have the same bytes as int32.
fn column<'py>(py: Python<'py>, values: &[u32]) -> Bound<'py, PyByteArray> {
    PyByteArray::new(py, &packed::from_u32s(values))
}

/// Rows that lie in host memory already: a CPU's step is complete on return.
pub(crate) struct HostRows(Bytes);

// === impl HostRows ===

impl HostRows {
    /// Copies what `result.host()` gives. The step is done, so nothing has to be kept alive.
    pub(crate) fn copy_of(result: &Bound<'_, PyAny>) -> PyResult<Self> {
        let host = result.call_method0("host")?;
        let buffer = PyBuffer::<u8>::get(&host)?;
        Ok(Self(Bytes::from(buffer.to_vec(result.py())?)))
    }
}

impl PendingRows for HostRows {
    fn wait(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn take(self: Box<Self>) -> Bytes {
        self.0
    }
}
