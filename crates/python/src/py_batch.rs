//! A batch on its way to Python, and rows on their way back.

#![allow(
    unsafe_code,
    reason = "an address from Python becomes rows, in one place"
)]

use bytes::Bytes;
use flowerbed_protocol::packed;
use flowerbed_tulip::PendingRows;
use flowerbed_tulip::batch::Batch;
use flowerbed_tulip::cuda::CudaRows;
use flowerbed_tulip::padded::StepShape;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
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

    #[getter]
    fn has_pairs(&self) -> bool {
        self.0.pair_starts.is_some()
    }

    fn pack_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        num_tokens_padded: usize,
        num_slots: usize,
        num_rows_padded: usize,
    ) -> PyResult<()> {
        let buffer = PyBuffer::<i32>::get(buffer)?;
        let values = buffer
            .as_mut_slice(py)
            .ok_or_else(|| PyValueError::new_err("buffer is read-only or not contiguous"))?;
        let shape = StepShape {
            num_tokens: num_tokens_padded,
            num_slots,
            num_rows: num_rows_padded,
        };
        self.0
            .pack_into(values, shape)
            .map_err(PyValueError::new_err)
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

/// What `result` gives, on its way from a GPU or in host memory already.
pub(crate) fn rows_of(result: &Bound<'_, PyAny>) -> PyResult<Box<dyn PendingRows>> {
    let on_device = result.call_method0("device_rows")?;
    if on_device.is_none() {
        return Ok(Box::new(HostRows::copy_of(result)?));
    }
    let (event, host, num_bytes, device_index) =
        on_device.extract::<(usize, usize, usize, i32)>()?;
    if event == 0 || host == 0 || isize::try_from(num_bytes).is_err() {
        return Err(PyValueError::new_err(
            "device_rows() gave no event or no memory",
        ));
    }
    // SAFETY: `result` promises them while it lives (`Rows` of _core.pyi), and who hands it over
    // keeps it until its slot comes back, which is after these rows were copied.
    let rows = unsafe { CudaRows::new(event, host, num_bytes, device_index) };
    Ok(Box::new(rows))
}

/// Rows that lie in host memory already: a CPU's step is complete on return.
struct HostRows(Bytes);

// === impl HostRows ===

impl HostRows {
    /// Copies what `result.host()` gives. The step is done, so nothing has to be kept alive.
    fn copy_of(result: &Bound<'_, PyAny>) -> PyResult<Self> {
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
