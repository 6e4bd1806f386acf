//! The bucket that keeps the model_dirs of an appliance's jobs.

use kube::KubeSchema;
use kube::core::Rule;
use millrace_params::ObjectName;
use serde::{Deserialize, Serialize};

/// An S3-compatible bucket. The coordinator of a job uploads what its agents write to the claim of its model_dir, and
/// fetches the newest checkpoint if the claim is new. Credentials are never part of a custom resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = authorities())]
pub struct ModelDirBucket {
    /// Address of the bucket, such as s3://runs/millrace. The files of a job are below it, in NAMESPACE/JOB.
    #[schemars(
        length(min = 8, max = 768),
        regex(pattern = "^s3://[a-z0-9.-]{3,63}(/[A-Za-z0-9_=.-]*[A-Za-z0-9_=-])*$")
    )]
    pub url: String,
    /// Address of another S3 server than that of AWS: http:// or https://, its name, and its port if it is another one
    /// than usual. With http://, checkpoints are sent in the clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = "^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?/?$"))]
    pub endpoint: Option<String>,
    /// Region of the bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9-]+$"))]
    pub region: Option<String>,
    /// Secret in the job's namespace with the credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and
    /// AWS_SESSION_TOKEN if there is one. Only coordinators have it.
    #[schemars(with = "ObjectName")]
    pub secret_name: String,
    /// ConfigMap in the job's namespace whose key ca.crt has the authorities of the server's certificate, because the
    /// image has none. Required unless the endpoint begins with http://.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ObjectName")]
    pub ca_config_map_name: Option<String>,
}

fn authorities() -> Rule {
    Rule::new("has(self.caConfigMapName) || (has(self.endpoint) && self.endpoint.startsWith('http://'))").message(
        "the image has no certificate authorities: name a ConfigMap with those of the bucket in caConfigMapName, or an \
         endpoint that begins with http://",
    )
}

impl ModelDirBucket {
    /// Returns the same bucket with the address of the model_dir of a job.
    #[must_use]
    pub fn for_job(&self, namespace: &str, name: &str) -> Self {
        Self { url: format!("{}/{namespace}/{name}", self.url), ..self.clone() }
    }

    /// Returns the port of the server: that of the endpoint, else the one of its scheme.
    pub fn port(&self) -> u16 {
        let endpoint = self.endpoint.as_deref().unwrap_or("https://").trim_end_matches('/');
        let port = endpoint.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).filter(|port| *port > 0);
        port.unwrap_or(if endpoint.starts_with("http://") { 80 } else { 443 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_follows_from_the_endpoint() {
        let port = |endpoint: Option<&str>| {
            let bucket = ModelDirBucket {
                url: "s3://runs/a".to_owned(),
                endpoint: endpoint.map(str::to_owned),
                region: None,
                secret_name: "s3".to_owned(),
                ca_config_map_name: None,
            };
            assert_eq!(bucket.for_job("team", "job").url, "s3://runs/a/team/job");
            bucket.port()
        };
        assert_eq!(port(None), 443);
        assert_eq!(port(Some("http://minio")), 80);
        assert_eq!(port(Some("https://minio:0")), 443);
        assert_eq!(port(Some("https://minio.example.org/")), 443);
        assert_eq!(port(Some("https://minio.example.org:9000/")), 9000);
    }
}
