//! Copies the parameters of a shard from one replica to another, through the data port.
//!
//! * A replica sends a chunk only as of the requested step. If its shard has continued meanwhile, the copy fails.
//! * The store's thread reads one chunk at a time, between its other work, so that a slow receiver delays nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_emulator::placement::{MemoryXId, shard_of_agent};
use millrace_emulator::plan::{ChunkId, PlanHash};
use millrace_engine::chunk_store::StoreError;
use millrace_engine::types::{AgentId, Role};
use millrace_protocol::proto::{self, ChunkPart, CopyRequest};
use millrace_protocol::replica::{CopyError, CopyReader, parts};
use millrace_protocol::security::Peer;
use millrace_protocol::{error_chain, transport};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::store::ShardStore;
use super::worker::StoreTask;
use crate::member::Member;
use crate::roles::work_queue::WorkSender;

/// Parts that wait for the receiver of a copy.
const MAX_QUEUED_PARTS: usize = 4;
/// Time without any received part after which a copy fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// The parameters of this agent, and the thread that reads them.
#[derive(Clone)]
pub struct CopySource {
    pub store: Arc<ShardStore>,
    pub work: WorkSender<StoreTask>,
    pub plan: PlanHash,
    pub shards: u32,
}

/// Serves copies of this agent's parameters.
pub struct ReplicaService {
    me: MemoryXId,
    source: watch::Receiver<Option<CopySource>>,
}

impl ReplicaService {
    /// Creates the service of the agent `memoryx-<me>`, which has the parameters of `source`, if any.
    pub const fn new(me: MemoryXId, source: watch::Receiver<Option<CopySource>>) -> Self {
        Self { me, source }
    }

    /// Returns the parameters for a request of `peer`.
    fn authorize(&self, peer: Option<AgentId>, request: &CopyRequest) -> Result<CopySource, Status> {
        let source = self.source.borrow().clone();
        let source = source.ok_or_else(|| Status::unavailable("this replica holds no parameters"))?;
        let shard = |index| shard_of_agent(index, source.shards);
        match peer {
            Some(AgentId { role: Role::MemoryX, index }) if shard(index) == shard(self.me) => {}
            _ => return Err(Status::permission_denied("only replicas of the same shard may copy it")),
        }
        if request.plan != source.plan.0 {
            return Err(Status::failed_precondition("the replicas have different plans"));
        }
        Ok(source)
    }
}

#[tonic::async_trait]
impl proto::replica_server::Replica for ReplicaService {
    type CopyStream = ReceiverStream<Result<ChunkPart, Status>>;

    async fn copy(&self, request: Request<CopyRequest>) -> Result<Response<Self::CopyStream>, Status> {
        let peer = request.extensions().get::<Peer>().and_then(|peer| peer.name.agent());
        let request = request.into_inner();
        let source = self.authorize(peer, &request)?;
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_PARTS);
        tokio::spawn(async move {
            // A receiver that has gone needs no reason.
            if let Err(status) = send_cells(&source, request.step, &sender).await {
                let _ = sender.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

async fn send_cells(
    source: &CopySource,
    step: u64,
    sender: &mpsc::Sender<Result<ChunkPart, Status>>,
) -> Result<(), Status> {
    for (cell, _) in source.store.cells() {
        let elements = read_cell(source, cell, step).await?;
        for part in parts(cell as u32, &elements) {
            if sender.send(Ok(part)).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Waits until the store's thread has read a cell.
async fn read_cell(source: &CopySource, cell: ChunkId, step: u64) -> Result<Bytes, Status> {
    let (reply, read) = oneshot::channel();
    let lost = || Status::unavailable("this replica has discarded its parameters");
    source.work.send(StoreTask::Copy { cell, step, reply }).map_err(|_| lost())?;
    read.await.map_err(|_| lost())?.map_err(|error| Status::failed_precondition(error.to_string()))
}

/// Why the parameters of another replica could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("the replica can't be reached: {}", error_chain(.0))]
    Unreachable(#[from] tonic::transport::Error),
    #[error("the replica sends nothing: {}", .0.message())]
    Refused(#[from] Status),
    #[error("the replica has sent nothing for {} s", PROGRESS_TIMEOUT.as_secs())]
    TimedOut,
    #[error(transparent)]
    Invalid(#[from] CopyError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Fills `store` with the parameters of `peer` at `address`, as of `step`.
///
/// # Errors
/// The peer can't be reached, is no longer at that step, or sends invalid data.
pub async fn copy_replica(
    member: &Member,
    (peer, address): (AgentId, &str),
    store: &ShardStore,
    plan: PlanHash,
    step: u64,
) -> Result<(), ReplicaError> {
    let channel = member.dial_data(address, peer).await?;
    let mut client =
        proto::replica_client::ReplicaClient::new(channel).max_decoding_message_size(transport::MAX_MESSAGE_BYTES);
    let mut stream = client.copy(CopyRequest { plan: plan.0, step }).await?.into_inner();
    let mut reader = CopyReader::new(store.cells().map(|(cell, bytes)| (cell as u32, bytes)));
    loop {
        let part = tokio::time::timeout(PROGRESS_TIMEOUT, stream.message()).await;
        let Some(part) = part.map_err(|_| ReplicaError::TimedOut)?? else { break };
        if let Some((cell, bytes)) = reader.take(&part)? {
            store.fill_from_copy(cell as ChunkId, step, &bytes)?;
        }
    }
    Ok(reader.finish()?)
}

#[cfg(test)]
mod tests {
    use millrace_emulator::numerics::Isa;
    use millrace_telemetry::stall::StallClock;
    use tonic::Code;

    use super::*;
    use crate::control::job::JobDocument;
    use crate::launch::LaunchDocument;
    use crate::launch::testing::local_run;
    use crate::roles::work_queue::work_queue;

    #[test]
    fn only_replicas_of_the_shard_with_the_same_plan_may_copy() {
        let LaunchDocument { job, appliance, .. } = local_run().launch;
        let job = JobDocument::new(job, appliance).unwrap().compile(Isa::detect()).unwrap();
        let store = Arc::new(ShardStore::new(job.clone(), 1, 2, StallClock::new()).unwrap());
        let (work, _tasks) = work_queue();
        let (copies, source) = watch::channel(None);
        let service = ReplicaService::new(3, source);
        let code = |role, index, plan| {
            let request = CopyRequest { plan, step: 0 };
            service.authorize(Some(AgentId::new(role, index)), &request).err().map(|status| status.code())
        };
        let plan = job.hash.0;
        assert_eq!(code(Role::MemoryX, 1, plan), Some(Code::Unavailable), "nothing is loaded");
        copies.send_replace(Some(CopySource { store, work, plan: job.hash, shards: 2 }));
        assert_eq!(code(Role::MemoryX, 1, plan), None);
        for (role, index) in [(Role::MemoryX, 2), (Role::Cs2, 1), (Role::SwarmX, 1), (Role::Coordinator, 1)] {
            assert_eq!(code(role, index, plan), Some(Code::PermissionDenied), "{role}-{index}");
        }
        assert_eq!(code(Role::MemoryX, 1, !plan), Some(Code::FailedPrecondition));
        assert!(service.authorize(None, &CopyRequest { plan, step: 0 }).is_err());
    }
}
