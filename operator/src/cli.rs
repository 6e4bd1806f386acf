//! The operator's command line; the chart sets it through the environment.

use clap::Parser;
use millrace_telemetry::logs::LogFormat;
use tracing::level_filters::LevelFilter;

use crate::agent_traces::Collector;

/// Runs TrainJobs on the cluster it is in.
#[derive(Clone, Debug, Parser)]
#[command(name = "millrace-operator", version)]
pub struct OperatorArgs {
    /// Namespace of the operator: of its lease and its certificate authority
    #[arg(long, env = "POD_NAMESPACE", default_value = "millrace-system")]
    pub namespace: String,
    /// Name of this operator among its replicas
    #[arg(long, env = "POD_NAME", default_value = "millrace-operator")]
    pub identity: String,
    /// Image of the jobs' pods, where the appliance names none
    #[arg(long, env = "MILLRACE_IMAGE")]
    pub image: String,
    /// JSON file of the Appliance that is to exist, if one is
    #[arg(long, env = "MILLRACE_APPLIANCE")]
    pub appliance: Option<std::path::PathBuf>,
    /// Whether there is a REST server, which copies the history of deleted jobs; without one they are not held for it
    #[arg(long, env = "MILLRACE_REST_SERVER", default_value_t = true, action = clap::ArgAction::Set)]
    pub rest_server: bool,
    /// Where /metrics and probes are served
    #[arg(long, env = "MILLRACE_LISTEN", default_value = "0.0.0.0:8080")]
    pub listen: String,
    /// The Lease that makes one operator the leader
    #[arg(long, default_value = "millrace-operator")]
    pub lease: String,
    /// The Secret of the certificate authority, made where there is none
    #[arg(long, default_value = "millrace-authority")]
    pub authority: String,
    /// The Secret of the identity under which the API server follows coordinators, made where there is none
    #[arg(long, default_value = "millrace-api-identity")]
    pub api_identity: String,
    /// The Secret of the certificate that the REST server shows to clients, made for --api-hosts
    #[arg(long, default_value = "millrace-api-tls")]
    pub api_certificate: String,
    /// Host names and addresses by which clients reach the REST server, by commas; without any no certificate is made
    #[arg(long, env = "MILLRACE_API_HOSTS", value_delimiter = ',')]
    pub api_hosts: Vec<String>,
    /// Level of the log: error, warn, info, debug or trace
    #[arg(long, env = "MILLRACE_LOG", default_value = "info")]
    pub log: LevelFilter,
    /// How lines of the log are written: text or json
    #[arg(long, env = LogFormat::LOG_FORMAT_ENV, default_value_t)]
    pub log_format: LogFormat,
    /// Where pods of jobs reach the collector of traces, as JSON; without it agents send none
    #[arg(long, env = "MILLRACE_AGENTS_COLLECTOR", value_name = "JSON")]
    pub agents_collector: Option<Collector>,
}
