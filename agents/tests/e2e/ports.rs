//! Tests of fixed and occupied ports, and of missing identities.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use super::harness::TestDir;
use super::identities::{first_attempt, identity_dir};
use super::job::{Job, role, write_launch};

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn agents_are_dialled_where_they_advertise() {
    let place = TestDir::new();
    let [control, journal, metrics] = [free_port(), free_port(), free_port()];
    let arguments = [control, journal, metrics].map(|port| format!("127.0.0.1:{port}"));
    let [listen, journal_listen, metrics_listen] = arguments.each_ref().map(String::as_str);
    let mut job = Job::coordinator_only(
        &place,
        10,
        &["--listen", listen, "--journal_listen", journal_listen, "--metrics_listen", metrics_listen],
    );
    assert_eq!((job.listening("control"), job.listening("journal")), (listen, journal_listen));
    let dialled = ["memoryx-0", "memoryx-1", "swarmx-0", "activation-0", "activation-1"];
    let ports = dialled.map(|agent| (agent, free_port()));
    for (agent, port) in ports {
        job.join_with(agent, &["--listen", &format!("127.0.0.1:{port}"), "--advertise", "localhost"]);
    }
    job.join("cs2-0");
    job.join("cs2-1");
    job.wait_for_step(1);
    assert!(get(metrics, "/readyz").starts_with("HTTP/1.1 200"));
    assert_eq!(job.end(), Some(0));
    let log = std::fs::read_to_string(place.path("m/logs/attempt-1/coordinator-0.log")).unwrap();
    for (agent, port) in ports {
        let sentence = format!("{agent} has joined; its address is localhost:{port}");
        assert!(log.contains(&sentence), "{sentence:?} is not in\n{log}");
    }
}

/// Starts a coordinator that must fail; returns exit code and standard error.
fn refused(place: &TestDir, arguments: &[&str]) -> (Option<i32>, String) {
    write_launch(place, "m", 10);
    let mut command = role(place, "coordinator", 0);
    let output = command.arg("--launch").arg(place.path("launch.json")).args(arguments).output().unwrap();
    assert!(!place.path("m").exists(), "a coordinator that does not come up writes nothing");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn port_conflicts_name_the_port() {
    let place = TestDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for flag in ["--listen", "--journal_listen", "--metrics_listen"] {
        let (code, stderr) = refused(&place, &[flag, &address]);
        assert_eq!(code, Some(1), "{flag}\n{stderr}");
        assert!(stderr.contains(&format!("can't listen on {address}")) && stderr.contains("hint: "), "{stderr}");
    }
}

#[test]
fn role_requires_its_own_identity() {
    let place = TestDir::new();
    let attempt = first_attempt();
    let another = identity_dir(&place, &attempt, "cs2-0");
    let empty = place.path("cache");
    let cases = [
        (None, "identity"),
        (Some(empty.as_path()), "tls.crt"),
        (Some(another.as_path()), "coordinator-0 was started with the identity of cs2-0"),
    ];
    write_launch(&place, "m", 10);
    for (dir, reason) in cases {
        let mut command = role(&place, "coordinator", 0);
        command.arg("--launch").arg(place.path("launch.json")).env_remove("MILLRACE_IDENTITY");
        command.args(dir.into_iter().flat_map(|dir| ["--identity".as_ref(), dir.as_os_str()]));
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(reason), "{stderr}");
    }
    assert!(!place.path("m").exists());
}
