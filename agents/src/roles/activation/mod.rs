//! Activation server: answers requests of systems for samples, and of the coordinator for the weights of losses. A
//! sample is a pure function of its number, so the server has no state, and any server can answer any request.

mod loss_weights;

use std::sync::Arc;

use millrace_data::{DataError, Dataset};
use millrace_engine::message::{AgentCommand, AgentReport};
use millrace_engine::types::Role;
use millrace_loader::LoaderServer;
use millrace_protocol::samples::Checked;
use millrace_protocol::security::{AuthenticatedIncoming, Peer};
use millrace_protocol::{proto, transport};
use millrace_telemetry::metric_definitions::{RoleMetrics, register_replaced_workers};
use tokio::signal::unix::Signal;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use self::loss_weights::{WeighRequest, start_weighing};
use super::RoleContext;
use super::work_meter::WorkMeter;
use crate::control::client::{ComputeUsage, SessionEvent};
use crate::error::AgentError;
use crate::input::{InputChoice, JobInputs, sample_failure};

/// Maximum replies that wait on one stream for their system to receive them.
const MAX_QUEUED_REPLIES: usize = 2;

/// Runs the server until the job ends.
pub async fn run(context: RoleContext, terminate: Signal) -> Result<(), AgentError> {
    let (listener, address) = context.listen().await?;
    let (ready, inputs) = watch::channel(None);
    let (failures, mut failed) = mpsc::channel(1);
    let meter = WorkMeter::start()?;
    serve(context.args.member.accept_data(listener), SampleService { inputs, failures, meter: meter.clone() });
    let mut session = context.join(address, None, terminate).await?;
    let _work_reports = meter.report_to(session.outbox.clone());
    let job = session.job.job.clone();
    // Usually a cache hit, because the coordinator has read the same files.
    let loader = context.args.loader.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut inputs = JobInputs::open(&job, InputChoice::ALL, |_, _| {})?;
        let server = inputs.start_loaders(&loader)?;
        Ok::<_, AgentError>((inputs, server))
    });
    let opened = opened.await.map_err(AgentError::local)?;
    let mut weigh = None;
    match opened {
        Ok((inputs, server)) => {
            server.iter().for_each(|server| register_loader(&context.metrics, server));
            let inputs = Arc::new(inputs);
            match start_weighing(&session.job, &inputs, session.outbox.clone()) {
                Ok(started) => weigh = started,
                Err(failure) => session.outbox.send_report(&failure.report()),
            }
            let _ = ready.send(Some(inputs));
        }
        Err(failure) => session.outbox.send_report(&failure.report()),
    }
    loop {
        let event = tokio::select! {
            event = session.next() => event?,
            Some(failure) = failed.recv() => {
                session.outbox.send_report(&failure.report());
                continue;
            }
        };
        match event {
            SessionEvent::Command(AgentCommand::Configure(configure)) => {
                let epoch = configure.epoch;
                context.metrics.set_epoch(epoch.attempt.into(), epoch.number.into());
                tracing::info!(%epoch, "epoch begins");
                context.ready.set(true);
                session.outbox.send_report(&AgentReport::Linked { epoch });
            }
            SessionEvent::Command(AgentCommand::Finish) | SessionEvent::Leave => break,
            SessionEvent::Command(AgentCommand::WeighLosses { epoch, batch, leaves }) => {
                if let Some(weigh) = &weigh {
                    // A thread that has ended has reported why.
                    let _ = weigh.send(WeighRequest { epoch, batch, leaves });
                }
            }
            SessionEvent::Command(_) => {}
            SessionEvent::Lost => {
                context.ready.set(false);
                session.rejoin(None).await?;
            }
        }
    }
    session.leave(&context.metrics, ComputeUsage::default()).await;
    Ok(())
}

/// Adds the metrics of the data loader to those of the role.
fn register_loader(metrics: &RoleMetrics, server: &Arc<LoaderServer>) {
    // Host and workers end with the last reference to the server.
    let server = Arc::downgrade(server);
    let replaced = move || server.upgrade().map_or(f64::NAN, |server| server.replaced_workers() as f64);
    register_replaced_workers(metrics.registry(), replaced);
}

fn serve(incoming: AuthenticatedIncoming, service: SampleService) {
    let service = proto::samples_server::SamplesServer::new(service)
        .max_decoding_message_size(transport::MAX_MESSAGE_BYTES)
        .max_encoding_message_size(usize::MAX);
    tokio::spawn(async move {
        if let Err(error) = transport::server().add_service(service).serve_with_incoming(incoming).await {
            tracing::error!("the data port is no longer served: {error}");
        }
    });
}

struct SampleService {
    inputs: watch::Receiver<Option<Arc<JobInputs>>>,
    /// Receives the errors of samples, which end the run.
    failures: mpsc::Sender<AgentError>,
    meter: WorkMeter,
}

#[tonic::async_trait]
impl proto::samples_server::Samples for SampleService {
    type FetchStream = ReceiverStream<Result<proto::SamplesReply, Status>>;

    async fn fetch(
        &self,
        request: Request<Streaming<proto::SamplesRequest>>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let peer = request.extensions().get::<Peer>().and_then(|peer| peer.name.agent());
        if peer.is_none_or(|peer| peer.role != Role::Cs2) {
            return Err(Status::permission_denied("only systems may request samples"));
        }
        let mut requests = request.into_inner();
        let (sender, receiver) = tokio::sync::mpsc::channel(MAX_QUEUED_REPLIES);
        let (mut inputs, failures, meter) = (self.inputs.clone(), self.failures.clone(), self.meter.clone());
        tokio::spawn(async move {
            // The data are opened while links are being established.
            let Ok(inputs) = inputs.wait_for(Option::is_some).await.map(|inputs| inputs.clone()) else { return };
            let Some(inputs) = inputs else { return };
            while let Ok(Some(request)) = requests.message().await {
                let (inputs, meter) = (inputs.clone(), meter.clone());
                // Reads and decompresses files.
                let read = move || meter.measure(request.count.into(), || read_samples(&inputs, &request));
                let read = tokio::task::spawn_blocking(read).await;
                let reply = match read {
                    Ok(Ok(reply)) => Ok(reply),
                    Ok(Err(ReadError::Request(status))) => Err(status),
                    Ok(Err(ReadError::Data(error))) => {
                        // A full channel already has a failure. The stream stays open, because the run ends for the
                        // data and not for a lost link.
                        let _ = failures.try_send(sample_failure(error));
                        return sender.closed().await;
                    }
                    Err(error) => Err(Status::internal(error.to_string())),
                };
                // A system that does not receive its replies gets no further request read.
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// Why samples can't be sent.
enum ReadError {
    /// The request is invalid.
    Request(Status),
    /// A sample can't be used.
    Data(DataError),
}

impl From<Status> for ReadError {
    fn from(status: Status) -> Self {
        Self::Request(status)
    }
}

fn read_samples(inputs: &JobInputs, request: &proto::SamplesRequest) -> Result<proto::SamplesReply, ReadError> {
    if !request.is_intact() {
        return Err(Status::data_loss("the request for samples arrived damaged").into());
    }
    let dataset = if request.evaluation { inputs.eval.as_ref() } else { inputs.train.as_ref() };
    let dataset = dataset.ok_or_else(|| Status::failed_precondition("this job has no such input"))?;
    let max_samples = inputs.max_samples;
    if u64::from(request.count) > max_samples {
        return Err(Status::out_of_range(format!("requested more than {max_samples} samples")).into());
    }
    let inputs = read(dataset, request.first, request.count).map_err(ReadError::Data)?;
    let &proto::SamplesRequest { iteration, round, attempt, epoch, .. } = request;
    Ok(proto::SamplesReply { iteration, round, attempt, epoch, inputs, checksum: 0 }.sealed())
}

fn read(dataset: &Dataset, first: u64, count: u32) -> Result<Vec<proto::SampleInput>, DataError> {
    let arrays = dataset.read(first, count)?;
    let input = |(input, elements): (millrace_data::SampleInput, Vec<u8>)| proto::SampleInput {
        name: input.name,
        elements: elements.into(),
    };
    Ok(dataset.inputs().into_iter().zip(arrays).map(input).collect())
}
