//! Rows that a GPU writes into pinned memory, and the wait for them.
//!
//! The only file that calls the CUDA driver. Its library is loaded when the first rows come and never
//! linked, so that one build runs with and without a GPU. Knows nothing of torch, which makes the
//! events and owns the memory.

#![allow(
    unsafe_code,
    reason = "calls of libcuda, and the reading of what a device wrote"
)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use bytes::Bytes;
use libloading::Library;

use crate::waiter::PendingRows;

const LIBRARY: &str = "libcuda.so.1";

// As in cuda.h.
type Status = c_int;
type Device = c_int;
type Context = *mut c_void;
type Event = *mut c_void;

const SUCCESS: Status = 0;

thread_local! {
    /// Device whose context is current on this thread.
    static CURRENT: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Rows that are there once an event has come.
#[derive(Debug)]
pub struct CudaRows {
    driver: fn() -> Result<&'static Driver, String>,
    event: usize,
    host: usize,
    num_bytes: usize,
    device_index: c_int,
    is_done: bool,
}

/// The calls that are needed, with the names and types of cuda.h.
#[derive(Debug)]
struct Driver {
    init: unsafe extern "C" fn(c_uint) -> Status,
    device_get: unsafe extern "C" fn(*mut Device, c_int) -> Status,
    primary_context_retain: unsafe extern "C" fn(*mut Context, Device) -> Status,
    context_set_current: unsafe extern "C" fn(Context) -> Status,
    event_synchronize: unsafe extern "C" fn(Event) -> Status,
    error_name: unsafe extern "C" fn(Status, *mut *const c_char) -> Status,
}

// === impl CudaRows ===

impl CudaRows {
    /// Rows of `num_bytes` at `host`, complete once `event` has come.
    ///
    /// # Safety
    /// Until this value is dropped:
    /// - `event` is a `CUevent` of device `device_index`, recorded behind the copy of the rows;
    /// - `num_bytes` at `host` are readable memory of this process;
    /// - nobody but the device, before the event, writes there.
    #[must_use]
    pub unsafe fn new(event: usize, host: usize, num_bytes: usize, device_index: c_int) -> Self {
        Self {
            driver: Driver::get,
            event,
            host,
            num_bytes,
            device_index,
            is_done: false,
        }
    }
}

impl PendingRows for CudaRows {
    fn wait(&mut self) -> Result<(), String> {
        let driver = (self.driver)()?;
        driver.enter(self.device_index)?;
        let event = std::ptr::with_exposed_provenance_mut::<c_void>(self.event);
        // SAFETY: `new` was promised a live event of this device, whose context is current.
        let status = unsafe { (driver.event_synchronize)(event) };
        driver.check("cuEventSynchronize", status)?;
        self.is_done = true;
        Ok(())
    }

    fn take(self: Box<Self>) -> Bytes {
        if !self.is_done || self.num_bytes == 0 {
            return Bytes::new();
        }
        let host = std::ptr::with_exposed_provenance::<u8>(self.host);
        // SAFETY: `new` was promised that these bytes are readable; the event has come, so that
        // nobody writes them any more.
        Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(host, self.num_bytes) })
    }
}

// === impl Driver ===

impl Driver {
    /// The driver of this machine, loaded once.
    fn get() -> Result<&'static Self, String> {
        static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
        let driver = DRIVER.get_or_init(|| Self::load(LIBRARY));
        driver.as_ref().map_err(Clone::clone)
    }

    fn load(library: &str) -> Result<Self, String> {
        let found = |error: libloading::Error| format!("{library}: {error}");
        // SAFETY: NVIDIA's driver library may be loaded at any time, from any thread.
        let library = unsafe { Library::new(library) }.map_err(found)?;
        // SAFETY: these are their types in cuda.h, unchanged since CUDA 7.
        let driver = unsafe {
            Self {
                init: *library.get(c"cuInit").map_err(found)?,
                device_get: *library.get(c"cuDeviceGet").map_err(found)?,
                primary_context_retain: *library.get(c"cuDevicePrimaryCtxRetain").map_err(found)?,
                context_set_current: *library.get(c"cuCtxSetCurrent").map_err(found)?,
                event_synchronize: *library.get(c"cuEventSynchronize").map_err(found)?,
                error_name: *library.get(c"cuGetErrorName").map_err(found)?,
            }
        };
        // Unloading would take the functions away.
        std::mem::forget(library);
        Ok(driver)
    }

    /// Makes the device's primary context, which is also torch's, current on this thread. It is kept
    /// until the process ends: a thread that waits for the device needs it as long as it lives.
    fn enter(&self, device_index: c_int) -> Result<(), String> {
        if CURRENT.get() == Some(device_index) {
            return Ok(());
        }
        let mut device: Device = 0;
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: initialising twice is allowed, and both places live until the calls return.
        unsafe {
            self.check("cuInit", (self.init)(0))?;
            self.check(
                "cuDeviceGet",
                (self.device_get)(&raw mut device, device_index),
            )?;
            let status = (self.primary_context_retain)(&raw mut context, device);
            self.check("cuDevicePrimaryCtxRetain", status)?;
            self.check("cuCtxSetCurrent", (self.context_set_current)(context))?;
        }
        CURRENT.set(Some(device_index));
        Ok(())
    }

    fn check(&self, call: &str, status: Status) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the place lives until the call returns.
        let is_known = unsafe { (self.error_name)(status, &raw mut name) } == SUCCESS;
        if !is_known || name.is_null() {
            return Err(format!("{call} gave the unknown status {status}"));
        }
        // SAFETY: the driver gave a C string that is never freed.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        Err(format!("{call} gave {name} ({status})"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot be set up must fail")]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::time::Duration;

    use super::*;

    /// What the fake driver waits for: after a while, it writes the host memory or fails.
    struct FakeEvent<'a> {
        after: Duration,
        status: Status,
        host: &'a [AtomicU8],
    }

    thread_local! {
        static NUM_CONTEXTS: Cell<usize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn init(_flags: c_uint) -> Status {
        SUCCESS
    }

    unsafe extern "C" fn device_get(device: *mut Device, ordinal: c_int) -> Status {
        if ordinal > 1 {
            return 101;
        }
        // SAFETY: `Driver::enter` gives a place that lives.
        unsafe { *device = ordinal + 40 };
        SUCCESS
    }

    unsafe extern "C" fn retain(context: *mut Context, device: Device) -> Status {
        // SAFETY: as above.
        unsafe { *context = std::ptr::without_provenance_mut(device as usize) };
        SUCCESS
    }

    unsafe extern "C" fn set_current(context: Context) -> Status {
        assert!(matches!(context.addr(), 40 | 41));
        NUM_CONTEXTS.set(NUM_CONTEXTS.get() + 1);
        SUCCESS
    }

    unsafe extern "C" fn synchronize(event: Event) -> Status {
        // SAFETY: the tests keep the event until the wait is over.
        let event = unsafe { &*event.cast::<FakeEvent<'_>>() };
        std::thread::sleep(event.after);
        if event.status == SUCCESS {
            for (value, byte) in (1..).zip(event.host) {
                byte.store(value, Ordering::SeqCst);
            }
        }
        event.status
    }

    unsafe extern "C" fn error_name(status: Status, name: *mut *const c_char) -> Status {
        let known = match status {
            101 => c"CUDA_ERROR_INVALID_DEVICE",
            700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            _ => return 1,
        };
        // SAFETY: `Driver::check` gives a place that lives.
        unsafe { *name = known.as_ptr() };
        SUCCESS
    }

    fn fake() -> Result<&'static Driver, String> {
        static FAKE: Driver = Driver {
            init,
            device_get,
            primary_context_retain: retain,
            context_set_current: set_current,
            event_synchronize: synchronize,
            error_name,
        };
        Ok(&FAKE)
    }

    fn rows_of(event: &FakeEvent<'_>, device_index: c_int) -> Box<CudaRows> {
        Box::new(CudaRows {
            driver: fake,
            event: std::ptr::from_ref(event).expose_provenance(),
            host: event.host.as_ptr().expose_provenance(),
            num_bytes: event.host.len(),
            device_index,
            is_done: false,
        })
    }

    fn event(host: &[AtomicU8], status: Status) -> FakeEvent<'_> {
        FakeEvent {
            after: Duration::from_millis(5),
            status,
            host,
        }
    }

    #[test]
    fn rows_are_copied_after_their_event_and_never_before() {
        let host = [const { AtomicU8::new(0) }; 3];
        let event = event(&host, SUCCESS);
        assert!(rows_of(&event, 0).take().is_empty());
        let mut rows = rows_of(&event, 0);
        rows.wait().unwrap();
        let bytes = rows.take();
        host[0].store(9, Ordering::SeqCst);
        assert_eq!(*bytes, [1, 2, 3]);
        let nothing = FakeEvent { host: &[], ..event };
        let mut rows = rows_of(&nothing, 0);
        rows.wait().unwrap();
        assert!(rows.take().is_empty());
    }

    #[test]
    fn a_context_is_made_current_once_on_each_thread_and_device() {
        let host = [const { AtomicU8::new(0) }; 1];
        let event = event(&host, SUCCESS);
        let contexts_of = |devices: [c_int; 3]| {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    for device in devices {
                        rows_of(&event, device).wait().unwrap();
                    }
                    NUM_CONTEXTS.get()
                });
                thread.join().unwrap()
            })
        };
        assert_eq!(contexts_of([0, 0, 0]), 1);
        assert_eq!(contexts_of([0, 1, 1]), 2);
    }

    #[test]
    fn a_fault_is_told_by_its_name_and_gives_no_rows() {
        let host = [const { AtomicU8::new(0) }; 1];
        for (status, device, expected) in [
            (
                700,
                0,
                "cuEventSynchronize gave CUDA_ERROR_ILLEGAL_ADDRESS (700)",
            ),
            (
                SUCCESS,
                2,
                "cuDeviceGet gave CUDA_ERROR_INVALID_DEVICE (101)",
            ),
            (
                12_345,
                0,
                "cuEventSynchronize gave the unknown status 12345",
            ),
        ] {
            let event = event(&host, status);
            let mut rows = rows_of(&event, device);
            assert_eq!(rows.wait().unwrap_err(), expected);
            assert!(rows.take().is_empty());
        }
    }

    #[test]
    fn a_machine_without_the_driver_says_so() {
        let error = Driver::load("libcuda-that-is-not-there.so.1").unwrap_err();
        assert!(
            error.starts_with("libcuda-that-is-not-there.so.1: "),
            "{error}"
        );
    }
}
