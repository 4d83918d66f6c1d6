//! A libcuda.so.1 without a device: an event is a struct of the test that says what comes of it, when.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::time::Duration;

/// As in test_device_rows.py.
#[repr(C)]
pub struct Event {
    after_us: u64,
    status: u64,
    source: *const u8,
    target: *mut u8,
    num_bytes: u64,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    unsafe { *device = ordinal };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, _device: c_int) -> c_int {
    unsafe { *context = 1 as *mut c_void };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> c_int {
    if context.is_null() { 201 } else { 0 }
}

/// The copy is done when its event comes, and not before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *const Event) -> c_int {
    let event = unsafe { &*event };
    std::thread::sleep(Duration::from_micros(event.after_us));
    if event.status == 0 {
        let size = event.num_bytes as usize;
        unsafe { std::ptr::copy_nonoverlapping(event.source, event.target, size) };
    }
    event.status as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_status: c_int, name: *mut *const c_char) -> c_int {
    unsafe { *name = c"CUDA_ERROR_ILLEGAL_ADDRESS".as_ptr() };
    0
}
