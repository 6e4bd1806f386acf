//! Notices a coordinator whose process runs but does not respond: it is stopped, or its thread is stuck.

use std::time::Duration;

use millrace_protocol::journal::JournalEndpoint;
use millrace_protocol::proto::FollowRequest;
use millrace_protocol::proto::journal_client::JournalClient;
use millrace_protocol::transport::KeepAlive;
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::Channel;

/// Pings of the launcher to the coordinator: a machine that stalls for a moment costs no coordinator.
const COORDINATOR_PINGS: KeepAlive = KeepAlive { interval: Duration::from_secs(1), timeout: Duration::from_secs(3) };
/// Time in which the end of a process is observed after its connections are closed.
const EXIT_DELAY: Duration = Duration::from_millis(200);

/// Calls `report` when the coordinator does not respond. Never ends: each new coordinator of the run is watched.
pub(super) async fn watch_coordinator(journal: JournalEndpoint, report: impl Fn()) {
    loop {
        if let Ok(client) = journal.connect_with(COORDINATOR_PINGS).await
            && follow(client).await.is_err()
        {
            // A process that ends closes its connections, too.
            sleep(EXIT_DELAY).await;
            report();
        }
        sleep(EXIT_DELAY).await;
    }
}

/// Follows the journal to its end.
async fn follow(mut client: JournalClient<Channel>) -> Result<(), Status> {
    let request = FollowRequest { from: 0, from_current_state: true };
    let mut entries = client.follow(request).await?.into_inner();
    while entries.message().await?.is_some() {}
    Ok(())
}
