//! No process outlives the run it belongs to: a role ends when the pipe on its standard input closes.
//!
//! The other end of that pipe is the launcher's. However the launcher ends, even killed outright, the kernel closes it,
//! and nothing is left behind on the machine.

use std::io::Read;
use std::sync::Once;

use super::Exit;
use super::role::started_by_launcher;

/// Ends this process with [`Exit::PeerLost`] once its standard input closes, if a local launcher started it. A role
/// that something else started (a container has no standard input) is left alone. Harmless to repeat.
///
/// What a role had in hand is lost, as with any crash: checkpoints are published whole or not at all.
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

/// Reads to the end; an error is an end, too, except an interruption.
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
