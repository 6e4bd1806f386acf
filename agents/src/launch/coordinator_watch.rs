//! Notices a coordinator whose process runs but does not respond: it is stopped, or its thread is stuck.

use std::time::Duration;

use millrace_protocol::journal::{JournalEndpoint, JournalError};
use millrace_protocol::proto::FollowRequest;
use millrace_protocol::transport::KeepAlive;
use tokio::time::sleep;
use tonic::Status;

/// Pings of the launcher to the coordinator: a machine that stalls for a moment costs no coordinator.
const COORDINATOR_PINGS: KeepAlive = KeepAlive { interval: Duration::from_secs(1), timeout: Duration::from_secs(3) };
/// Time in which the end of a process is observed after its connections are closed.
const EXIT_DELAY: Duration = Duration::from_millis(200);

/// Calls `report` when the coordinator does not respond. Never ends: each new coordinator of the run is watched, from
/// its first journal entry on; before that, it may compute for a long time.
pub(super) async fn watch_coordinator(journal: JournalEndpoint, report: impl Fn()) {
    loop {
        if follow(&journal, KeepAlive::DATA, true).await.is_ok()
            && follow(&journal, COORDINATOR_PINGS, false).await.is_err()
        {
            // A process that ends closes its connections, too.
            sleep(EXIT_DELAY).await;
            report();
        }
        sleep(EXIT_DELAY).await;
    }
}

/// Follows the journal at `endpoint`, up to one entry or to its end.
async fn follow(endpoint: &JournalEndpoint, pings: KeepAlive, only_one: bool) -> Result<(), FollowError> {
    let mut client = endpoint.connect_with(pings).await?;
    let request = FollowRequest { from: 0, from_current_state: true };
    let mut entries = client.follow(request).await?.into_inner();
    while entries.message().await?.is_some() && !only_one {}
    Ok(())
}

/// Why the journal of a coordinator can't be followed.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Connect(#[from] JournalError),
    #[error("{}", .0.message())]
    Broken(#[from] Status),
}
