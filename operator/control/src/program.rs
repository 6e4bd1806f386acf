//! What every program around the loop begins with: a wish to end that is heard, and a log.

use std::io;

use k8s_openapi::jiff::Timestamp;
use log::{LevelFilter, Log, Metadata, Record};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Becomes true on SIGTERM or Ctrl-C.
///
/// # Errors
/// The system lets nobody listen for signals.
pub fn end_signals() -> io::Result<watch::Receiver<bool>> {
    let (ended, ending) = watch::channel(false);
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let mut signals = signal(kind)?;
        let ended = ended.clone();
        tokio::spawn(async move {
            signals.recv().await;
            let _ = ended.send(true);
        });
    }
    Ok(ending)
}

/// Waits until `ending` is true, or can't become true any more.
pub async fn ended(mut ending: watch::Receiver<bool>) {
    // An error means that its sender is gone.
    let _ = ending.wait_for(|ended| *ended).await;
}

/// Logs to standard error, one line each: up to `level`, and of that what is `wanted`. Libraries tell much that comes back from
/// them as an error, too, and is told by us.
pub fn log_to_stderr(level: LevelFilter, wanted: fn(&Metadata<'_>) -> bool) {
    struct Stderr(fn(&Metadata<'_>) -> bool);

    impl Log for Stderr {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.level() <= log::max_level() && (self.0)(metadata)
        }

        fn log(&self, record: &Record<'_>) {
            if self.enabled(record.metadata()) {
                let now = Timestamp::now();
                eprintln!("{now:.3} {} {}: {}", record.level(), record.target(), record.args());
            }
        }

        fn flush(&self) {}
    }

    // A second logger is refused; there is none before `main`.
    let _ = log::set_boxed_logger(Box::new(Stderr(wanted))).map(|()| log::set_max_level(level));
}
