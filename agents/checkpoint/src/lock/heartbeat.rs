//! The thread that refreshes a lock.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::slot::state_lines;

/// Refreshes a lock file periodically; marks it released on drop.
#[derive(Debug)]
pub(super) struct LockHeartbeat {
    file: Arc<File>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl LockHeartbeat {
    pub fn start(file: Arc<File>, period: Duration) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (heartbeat_file, stopped) = (Arc::clone(&file), Arc::clone(&stop));
        // Without a thread the lock is still valid; other hosts treat it as expired after the lease.
        let thread = std::thread::Builder::new()
            .name("lock-heartbeat".into())
            .spawn(move || run_heartbeat(&heartbeat_file, &stopped, period));
        Self { file, stop, thread: thread.ok() }
    }
}

fn run_heartbeat(file: &File, (stop, changed): &(Mutex<bool>, Condvar), period: Duration) {
    let mut stopped = stop.lock().unwrap_or_else(PoisonError::into_inner);
    while !*stopped {
        let waited = changed.wait_timeout(stopped, period).unwrap_or_else(PoisonError::into_inner);
        stopped = waited.0;
        if !*stopped {
            write(file, false);
        }
    }
}

/// Rewrites the two lines of fixed width. After a failure the heartbeat is simply not refreshed.
fn write(file: &File, released: bool) {
    let _ = file.write_all_at(state_lines(released).as_bytes(), 0).and_then(|()| file.sync_data());
}

impl Drop for LockHeartbeat {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        write(&self.file, true);
    }
}
