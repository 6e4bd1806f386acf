//! Notifications of writes, for streams that follow a job.

use tokio::sync::broadcast::Receiver;

use crate::Store;

/// Number of changes that a listener may be behind before it misses some.
pub(crate) const MAX_CHANGES_BEHIND: usize = 1024;

/// A notification of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeNotice {
    pub uid: String,
    pub what: ChangedPart,
}

/// A part of a job that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangedPart {
    /// The job itself: it was created, changed, deleted, or removed from the database.
    Job,
    /// Its journal has new entries.
    Entries,
    Events,
}

impl Store {
    /// Returns a receiver of the changes from now on. A change is sent after its commit. Changes are hints, not a
    /// reliable log: only writes of this process are sent; a listener that falls behind misses some
    /// (`RecvError::Lagged`: read everything again); and a call whose future is dropped during its commit sends
    /// nothing. A stream that follows a job therefore also polls from time to time; with several servers on one
    /// PostgreSQL, polling is the only way to see the writes of the others.
    pub fn changes(&self) -> Receiver<ChangeNotice> {
        self.inner.changes.subscribe()
    }

    pub(crate) fn notify(&self, uid: &str, part: ChangedPart) {
        // Fails only if there are no listeners.
        let _ = self.inner.changes.send(ChangeNotice { uid: uid.to_owned(), what: part });
    }
}
