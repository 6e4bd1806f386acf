//! Tells other threads which write to storage is in progress, and since when: storage that has stopped to respond, such
//! as a network file system whose server is gone, returns no error.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a write to a checkpoint may take: a sync of a large one takes long on slow storage.
pub const MAX_CHECKPOINT_WRITE_TIME: Duration = Duration::from_secs(30);

/// Watches the writes of one thread. Clones share the watch.
#[derive(Clone, Debug, Default)]
pub struct WriteWatch {
    ongoing: Arc<Mutex<Option<OngoingWrite>>>,
}

/// A write that has not returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OngoingWrite {
    /// The file, or the directory of a checkpoint.
    pub file: PathBuf,
    pub began: Instant,
}

impl OngoingWrite {
    /// Returns whether the write has taken longer than `bound`.
    pub fn exceeds(&self, bound: Duration) -> bool {
        self.began.elapsed() > bound
    }
}

impl WriteWatch {
    /// Runs `write`, which writes to `file`.
    pub fn watch<T>(&self, file: &Path, write: impl FnOnce() -> T) -> T {
        self.begin(file);
        let _end = EndOnDrop(self);
        write()
    }

    /// Begins a write to `file`.
    pub fn begin(&self, file: &Path) {
        self.set(Some(OngoingWrite { file: file.to_owned(), began: Instant::now() }));
    }

    /// Ends the write in progress.
    pub fn end(&self) {
        self.set(None);
    }

    /// Returns the write in progress; `None` if there is none.
    pub fn ongoing(&self) -> Option<OngoingWrite> {
        self.ongoing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, ongoing: Option<OngoingWrite>) {
        *self.ongoing.lock().unwrap_or_else(PoisonError::into_inner) = ongoing;
    }
}

/// Ends the write, also if it panics.
struct EndOnDrop<'a>(&'a WriteWatch);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_is_ongoing_until_it_ends() {
        let watch = WriteWatch::default();
        let file = Path::new("m/metrics.jsonl");
        let seen = watch.watch(file, || watch.clone().ongoing().unwrap());
        assert_eq!((seen.file.as_path(), watch.ongoing()), (file, None));
        assert!(seen.exceeds(Duration::ZERO) && !seen.exceeds(Duration::from_secs(60)));
        let panics = std::panic::AssertUnwindSafe(|| watch.watch(file, || panic!("the write panics")));
        std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(watch.ongoing(), None);
    }
}
