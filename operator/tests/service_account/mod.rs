//! The operator's service account as the chart makes it: tests that use it fail if the chart lacks a right.

use std::io::Write;
use std::process::{Command, Stdio};

use kube::config::Kubeconfig;

/// The operator's namespace.
pub const NAMESPACE: &str = "millrace-system";

/// Gives the operator's service account the chart's rights. Returns the configuration of KUBECONFIG, changed so that
/// its users impersonate this account. Needs helm and kubectl in PATH, and the namespace.
pub fn create() -> Kubeconfig {
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/millrace");
    let arguments = ["template", "millrace", chart, "-n", NAMESPACE, "-s", "templates/operator-rights.yaml"];
    let rights = Command::new("helm").args(arguments).output().expect("helm is in PATH");
    assert!(rights.status.success(), "helm: {}", String::from_utf8_lossy(&rights.stderr));
    let mut apply = Command::new("kubectl");
    apply.args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut apply = apply.spawn().expect("kubectl is in PATH");
    apply.stdin.take().unwrap().write_all(&rights.stdout).unwrap();
    assert!(apply.wait().unwrap().success());
    let mut configuration = Kubeconfig::read_from(std::env::var_os("KUBECONFIG").expect("KUBECONFIG is set")).unwrap();
    for user in &mut configuration.auth_infos {
        let user = user.auth_info.as_mut().unwrap();
        user.impersonate = Some(format!("system:serviceaccount:{NAMESPACE}:millrace-operator"));
    }
    configuration
}
