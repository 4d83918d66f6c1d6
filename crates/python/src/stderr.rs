//! Stderr for a log: a reader that stalls, as a stopped pager does, never holds up who writes.

use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A pipe that has any room has room for so much, so that writing it does not wait.
const PIECE_BYTES: usize = 4_096;
/// A reader that is merely slow catches up.
const PATIENCE_MS: u8 = 100;

/// Lines that found no room since the last one that did.
static NUM_DROPPED: AtomicU64 = AtomicU64::new(0);

/// Takes one whole line a call. Lines without room are dropped, and counted in the log once it is
/// read again.
#[derive(Debug)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let is_read = NUM_DROPPED.load(Ordering::Relaxed) == 0;
        if !has_room(if is_read { PATIENCE_MS } else { 0 }) {
            NUM_DROPPED.fetch_add(1, Ordering::Relaxed);
            return Ok(line.len());
        }
        let num_dropped = NUM_DROPPED.swap(0, Ordering::Relaxed);
        if num_dropped > 0 {
            tracing::warn!(target: "flowerbed", num_dropped, "nobody read the log: lines are missing");
        }
        let mut stderr = io::stderr().lock();
        for piece in line.chunks(PIECE_BYTES) {
            if !has_room(0) {
                break;
            }
            stderr.write_all(piece)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether stderr takes a piece at once. One that is broken does: its error is found by writing.
fn has_room(timeout_ms: u8) -> bool {
    let stderr = io::stderr();
    let mut polled = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut polled, PollTimeout::from(timeout_ms)) != Ok(0)
}
