//! Ends a role when the pipe on its standard input closes, so that no process outlives its run.
//!
//! The launcher holds the other end of the pipe. However the launcher ends, even by SIGKILL, the kernel closes the
//! pipe.

use std::io::Read;
use std::sync::Once;

use millrace_protocol::launch::Exit;

use super::process::started_by_launcher;

/// Ends this process with [`Exit::PeerLost`] once its standard input closes, if a local launcher started it. Does
/// nothing for a role that was started in another way (a container has no standard input). Idempotent.
///
/// Unsaved work of the role is lost, as after a crash; checkpoints are published completely or not at all.
pub fn watch_parent() {
    static WATCHED: Once = Once::new();
    if !started_by_launcher() {
        return;
    }
    WATCHED.call_once(|| {
        let watch = || {
            wait_for_end(std::io::stdin().lock());
            std::process::exit(i32::from(Exit::PeerLost.code()));
        };
        if let Err(error) = std::thread::Builder::new().name("parent".into()).spawn(watch) {
            eprintln!("error: can't watch the launcher: {error}");
            std::process::exit(i32::from(Exit::Failed.code()));
        }
    });
}

/// Reads to the end of the input. An error other than an interruption counts as the end.
fn wait_for_end(mut input: impl Read) {
    let mut ignored = [0; 64];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
