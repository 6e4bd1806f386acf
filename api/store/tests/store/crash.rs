//! Acknowledged writes survive `kill -9`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use millrace_store::NewEvent;

use crate::jobs::{job, make};
use crate::scratch::{Scratch, open, runtime};

behaviours![acknowledged_writes_survive_kill_9];

const URL: &str = "MILLRACE_TEST_CRASH_URL";
const ACKNOWLEDGED: &str = "acknowledged ";

/// Not a test: the process that the tests below start and kill.
#[test]
#[ignore = "is killed by acknowledged_writes_survive_kill_9"]
fn writes_until_it_is_killed() {
    let Ok(url) = std::env::var(URL) else { return };
    runtime().block_on(async {
        let store = open(&url).await;
        for number in 0.. {
            let uid = format!("{}-{number}", std::process::id());
            make(&store, &job(&uid, number)).await;
            crate::journal::append_steps(&store, &uid, 1..=20).await;
            let event = NewEvent { at_ms: 0, warning: false, reason: String::new(), message: String::new() };
            store.add_event(&uid, &event).await.unwrap();
            // libtest captures the output of println.
            writeln!(std::io::stdout(), "\n{ACKNOWLEDGED}{uid}").unwrap();
        }
    });
}

async fn acknowledged_writes_survive_kill_9(scratch: &Scratch) {
    for least in [3, 10, 17] {
        let acknowledged = write_and_kill(&scratch.url, least);
        assert!(acknowledged.len() >= least);
        let store = scratch.again().await;
        for uid in &acknowledged {
            assert!(store.job(uid).await.unwrap().is_some(), "{uid}");
            assert_eq!(store.newest_entry(uid).await.unwrap(), 20, "{uid}");
            assert_eq!(store.events(uid, 0, 2).await.unwrap().len(), 1, "{uid}");
        }
        // The interrupted write is there completely or not at all, and holds no lock.
        make(&store, &job(&format!("after-{least}"), 0)).await;
        store.close().await;
    }
}

/// Starts a writer, kills it after `least` acknowledgements, and returns all that it acknowledged.
fn write_and_kill(url: &str, least: usize) -> Vec<String> {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::writes_until_it_is_killed", "--ignored", "--nocapture"])
        .env(URL, url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = Vec::new();
    // What the writer printed before the kill is read to its end.
    for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        let Some(uid) = line.strip_prefix(ACKNOWLEDGED) else { continue };
        acknowledged.push(uid.to_owned());
        if acknowledged.len() == least {
            writer.kill().unwrap();
        }
    }
    writer.wait().unwrap();
    acknowledged
}
