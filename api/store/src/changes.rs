//! Word of what was written, for streams that follow a job.

use tokio::sync::broadcast::Receiver;

use crate::Store;

/// How many changes a listener may be behind before it misses some.
pub(crate) const BEHIND_MAX: usize = 1024;

/// Something new stands under a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The job.
    pub uid: String,
    /// What of it.
    pub what: What,
}

/// What of a job changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// The job itself: it was made, changed, deleted or forgotten.
    Job,
    /// Its journal has new entries.
    Entries,
    /// It has new events.
    Events,
}

impl Store {
    /// Changes from now on, each told after it was committed. It is a hint to look, not what to rely on: only writes of this
    /// process are told, a listener that falls behind misses some (`RecvError::Lagged`: look at everything), and a call
    /// whose future is dropped while it commits tells nothing. Whoever follows a job also looks by itself now and then; with
    /// several servers over one PostgreSQL that is all that tells it of the others' writes.
    pub fn changes(&self) -> Receiver<Change> {
        self.inner.changes.subscribe()
    }

    pub(crate) fn tell(&self, uid: &str, what: What) {
        // Fails only where nobody listens.
        let _ = self.inner.changes.send(Change { uid: uid.to_owned(), what });
    }
}
