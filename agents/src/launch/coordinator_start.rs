//! What the launcher and a coordinator exchange when the coordinator starts: it reads its launch document, and prints
//! its addresses.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::ChildStdout;

use super::ready::parse_failure;
use super::{LaunchDocument, LaunchError, ListenAddresses};

/// How long the coordinator has to print its addresses.
const COORDINATOR_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the launch document that a coordinator reads from its standard input.
pub(super) fn document(launch: &LaunchDocument) -> Result<String, LaunchError> {
    let text = launch.to_json();
    text.map_err(|error| LaunchError::System { action: "write the launch document".into(), cause: error.into() })
}

/// Reads the coordinator's first line, its addresses. Returns `None` if it ended instead, and prints its failure. Fails
/// if the line is another one, or does not arrive within [`COORDINATOR_START_TIMEOUT`].
pub(super) async fn first_line(lines: &mut BufReader<ChildStdout>) -> Result<Option<ListenAddresses>, LaunchError> {
    let mut line = String::new();
    let read = tokio::time::timeout(COORDINATOR_START_TIMEOUT, lines.read_line(&mut line)).await;
    let read = read.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
    match read.map_err(LaunchError::system("get the coordinator's address"))? {
        0 => Ok(None),
        _ => match (ListenAddresses::parse(&line), parse_failure(line.as_bytes())) {
            (Some(listening), _) => Ok(Some(listening)),
            (None, Some(failure)) => {
                eprintln!("{failure}");
                Ok(None)
            }
            (None, None) => Err(LaunchError::System {
                action: "get the coordinator's address".into(),
                cause: std::io::Error::other(format!("it printed {:?}", line.trim_end())),
            }),
        },
    }
}
