//! The operator's command line; the chart sets it through the environment.

use clap::Parser;
use millrace_telemetry::logs::LogFormat;
use tracing::level_filters::LevelFilter;

use crate::agent_traces::Collector;
use crate::children::UploadServer;

/// Runs TrainJobs on its cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "millrace-operator", version)]
pub struct OperatorArgs {
    /// Namespace of the operator, its lease and its certificate authority
    #[arg(long, env = "POD_NAMESPACE", default_value = "millrace-system")]
    pub namespace: String,
    /// Name of this operator among its replicas
    #[arg(long, env = "POD_NAME", default_value = "millrace-operator")]
    pub identity: String,
    /// Image of the jobs' pods, unless the appliance has one
    #[arg(long, env = "MILLRACE_IMAGE")]
    pub image: String,
    /// JSON file of the Appliance to apply
    #[arg(long, env = "MILLRACE_APPLIANCE")]
    pub appliance: Option<std::path::PathBuf>,
    /// Whether a REST server archives the history of deleted jobs; if so, deletion waits for it
    #[arg(long, env = "MILLRACE_REST_SERVER", default_value_t = true, action = clap::ArgAction::Set)]
    pub rest_server: bool,
    /// Address on which /metrics and probes are served
    #[arg(long, env = "MILLRACE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: String,
    /// Lease for the leader election
    #[arg(long, default_value = "millrace-operator")]
    pub lease: String,
    /// Secret of the certificate authority, created if missing
    #[arg(long, default_value = "millrace-authority")]
    pub authority: String,
    /// Secret of the identity with which the REST server follows coordinators, created if missing
    #[arg(long, default_value = "millrace-api-identity")]
    pub api_identity: String,
    /// Secret of the REST server's certificate, issued for --api-hosts
    #[arg(long, default_value = "millrace-api-tls")]
    pub api_certificate: String,
    /// Comma-separated host names and addresses of the REST server; without any, no certificate is issued
    #[arg(long, env = "MILLRACE_API_HOSTS", value_delimiter = ',')]
    pub api_hosts: Vec<String>,
    /// host:port at which the REST server serves uploads; jobs that name uploads are rejected without it
    #[arg(long, env = "MILLRACE_UPLOAD_SERVER", value_name = "HOST:PORT")]
    pub upload_server: Option<String>,
    /// Level of the log: error, warn, info, debug or trace
    #[arg(long, env = "MILLRACE_LOG", default_value = "info")]
    pub log: LevelFilter,
    /// Format of the log: text or json
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV, default_value_t)]
    pub log_format: LogFormat,
    /// How pods of jobs reach the trace collector, as JSON; agents send no traces without it
    #[arg(long, env = "MILLRACE_AGENTS_COLLECTOR", value_name = "JSON")]
    pub agents_collector: Option<Collector>,
}

impl OperatorArgs {
    /// Returns where uploads are; `None` if the REST server stores none.
    pub fn upload_server(&self) -> Option<UploadServer> {
        let address = self.upload_server.clone().filter(|address| !address.is_empty())?;
        Some(UploadServer { address, namespace: self.namespace.clone() })
    }
}
