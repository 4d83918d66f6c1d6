//! Memory that the answers of one connection may hold, as the handlers of its requests see it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const KIB: usize = 1_024;

/// An extension of every request; all requests of a connection have the same.
#[derive(Clone, Debug)]
pub struct Share {
    free: Arc<Semaphore>, // KiB
    whole: u32,           // KiB
}

impl Share {
    /// So many bytes.
    #[must_use]
    pub fn new(num_bytes: usize) -> Self {
        let whole = u32::try_from(num_bytes / KIB).unwrap_or(u32::MAX);
        Self {
            free: Arc::new(Semaphore::new(whole as usize)),
            whole,
        }
    }

    /// Whether [`take`](Self::take) would give something now.
    #[must_use]
    pub fn has_room(&self, num_bytes: usize) -> bool {
        self.free.available_permits() >= self.kib(num_bytes) as usize
    }

    /// Memory for an answer, until it is dropped; none if the client has left too much unread.
    #[must_use]
    pub fn take(&self, num_bytes: usize) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.free);
        free.try_acquire_many_owned(self.kib(num_bytes)).ok()
    }

    /// One answer that is larger than the share takes all of it.
    fn kib(&self, num_bytes: usize) -> u32 {
        u32::try_from(num_bytes / KIB).map_or(self.whole, |kib| kib.min(self.whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_taken_given_back_and_never_too_small_for_one_answer() {
        let share = Share::new(10 * KIB);
        let taken = share.take(6 * KIB).unwrap();
        assert!(share.has_room(4 * KIB) && !share.has_room(5 * KIB));
        assert!(share.take(5 * KIB).is_none());
        assert!(share.take(usize::MAX).is_none());
        drop(taken);
        let whole = share.take(usize::MAX).unwrap();
        assert!(share.take(KIB).is_none());
        assert!(share.take(KIB - 1).is_some(), "a probe's answer is nothing");
        drop(whole);
        assert!(share.has_room(10 * KIB));
    }
}
