//! What the operator and the REST server must agree on about a cluster.
//!
//! The two programs never call each other. Each finds what the other has written, in objects of the API server, and
//! both connect to the pods of a job:
//!
//! ```text
//!   REST server ── creates ──► TrainJob, FileReader ◄── watches ── operator
//!        │                                                            │ creates
//!        │                                                            ▼
//!        └── mutual TLS: journals of coordinators, files ──► pods, Services, Secrets
//! ```
//!
//! Whatever both need for that is defined here, once:
//!
//! * [`names`]: the names and labels of a job's objects.
//! * [`address`]: ports, host names, and the certificate that a coordinator must present; [`credentials`]:
//!   certificates in Secrets.
//! * [`model_dir`]: the claim and the path of a job's model_dir; [`pod_site`]: what jobs' records say about pods.
//! * [`archive`]: the finalizer that holds a deleted job until its history is archived.
//! * [`priorities`]: the values of PriorityClasses.
//! * [`client`]: the connection to the API server, on which every wait has a timeout; [`watch`]: watches that continue
//!   after errors and unreadable objects.
//!
//! What only one program needs is part of that program: the operator builds pods and issues certificates, the REST
//! server builds requests and copies history. The REST server does not depend on the operator.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![forbid(unsafe_code)]

pub mod address;
pub mod archive;
pub mod client;
pub mod credentials;
pub mod model_dir;
pub mod names;
pub mod pod_site;
pub mod priorities;
pub mod watch;
