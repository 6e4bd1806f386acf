//! The shutdown of a program that runs the loop, or a part of it: from a signal to every task that has to end.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Returns a channel that becomes true on SIGTERM or Ctrl-C.
///
/// # Errors
/// The handlers of the signals can't be installed.
pub fn shutdown_signals() -> io::Result<watch::Receiver<bool>> {
    let (ended, shutdown) = watch::channel(false);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let ended = ended.clone();
        tokio::spawn(async move {
            signals.recv().await;
            let _ = ended.send(true);
        });
    }
    Ok(shutdown)
}

/// Waits until `shutdown` is true, or its sender is dropped.
pub async fn wait_for_shutdown(mut shutdown: watch::Receiver<bool>) {
    // An error means that the sender was dropped.
    let _ = shutdown.wait_for(|ended| *ended).await;
}
