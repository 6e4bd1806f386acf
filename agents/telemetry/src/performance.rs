//! `performance.json`: throughput and resource usage of a run. The file is replaced at every update.
//!
//! Users of the model zoo know the first six keys; the others are specific to Millrace.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::atomic_file;
use crate::error::{Error, Result};
use crate::progress::{Rates, per_second};
use crate::stall::StallTotals;

/// Name of the file in model_dir.
pub const PERFORMANCE_FILE: &str = "performance.json";

/// Throughput and resource usage so far. A resumed run counts from where it resumed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Performance {
    /// Number of training samples processed.
    pub total_samples: u64,
    /// Seconds of training, without pauses.
    pub total_time: f64,
    /// Samples per second over the last log interval, smoothed.
    pub rate: f64,
    /// Samples per second over all of `total_time`.
    pub global_rate: f64,
    /// Equal to `global_rate`, under the name that other readers expect.
    pub samples_per_sec: f64,
    /// The model's FLOP/s as a percentage of the machine's peak; absent while the peak is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops_utilization: Option<f64>,
    /// Number of training steps committed.
    pub total_steps: u64,
    /// Number of tokens that counted in the loss.
    pub total_tokens: u64,
    /// Tokens per second over all of `total_time`.
    pub tokens_per_sec: f64,
    /// Floating-point operations of the model (forward and backward, without recomputation) per second.
    pub flops_per_sec: f64,
    /// Seconds that each agent waited, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stall_seconds: BTreeMap<String, StallTotals>,
    /// Resources used by each agent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, AgentUsage>,
}

/// Resources used by one agent since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentUsage {
    /// Seconds spent computing; 0 except for systems.
    pub busy_seconds: f64,
    /// Highest resident memory.
    pub peak_rss_bytes: u64,
    /// Bytes of frames received, headers included.
    pub bytes_in: u64,
    /// Bytes of frames sent, headers included.
    pub bytes_out: u64,
}

/// The work of a run, from which [`Performance`] is computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunTotals {
    /// Number of training steps committed.
    pub steps: u64,
    pub samples: u64,
    /// Number of tokens that counted in the loss.
    pub tokens: u64,
    /// The model's FLOPs per sample, forward and backward.
    pub flops_per_sample: f64,
    /// Peak FLOP/s of the machine; `None` if not measured.
    pub peak_flops_per_sec: Option<f64>,
}

impl Performance {
    /// Computes all rates from the work done in `elapsed`. The caller sets `stall_seconds` and `agents`.
    pub fn new(work: RunTotals, elapsed: Duration, rates: Rates) -> Self {
        let global_rate = per_second(work.samples, elapsed);
        let flops_per_sec = work.flops_per_sample * global_rate;
        Self {
            total_samples: work.samples,
            total_time: elapsed.as_secs_f64(),
            rate: rates.rate,
            global_rate,
            samples_per_sec: global_rate,
            flops_utilization: work
                .peak_flops_per_sec
                .filter(|&peak| peak > 0.0)
                .map(|peak| 100.0 * flops_per_sec / peak),
            total_steps: work.steps,
            total_tokens: work.tokens,
            tokens_per_sec: per_second(work.tokens, elapsed),
            flops_per_sec,
            stall_seconds: BTreeMap::new(),
            agents: BTreeMap::new(),
        }
    }

    /// Replaces `performance.json` in `model_dir`.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then unchanged.
    pub fn write(&self, model_dir: &Path) -> Result<()> {
        let path = model_dir.join(PERFORMANCE_FILE);
        atomic_file::replace(&path, |file| {
            use std::io::Write;
            serde_json::to_writer_pretty(&mut *file, self)?;
            file.write_all(b"\n")
        })
    }

    /// Reads `performance.json` of `model_dir`.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file is not such a document.
    pub fn read(model_dir: &Path) -> Result<Self> {
        let path = model_dir.join(PERFORMANCE_FILE);
        millrace_roots::read(&path)
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .map_err(Error::io("read", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stall::StallReason;

    #[test]
    fn written_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let work = RunTotals {
            steps: 10,
            samples: 160,
            tokens: 40_960,
            flops_per_sample: 2e9,
            peak_flops_per_sec: Some(1e11),
        };
        let rates = Rates { rate: 17.0, global_rate: 16.0 };
        let mut performance = Performance::new(work, Duration::from_secs(10), rates);
        let mut stalls = StallTotals::default();
        stalls[StallReason::Weights] = 0.25;
        performance.stall_seconds.insert("cs2-0".into(), stalls);

        assert_eq!(performance.flops_utilization, Some(32.0));
        assert_eq!(performance.tokens_per_sec, 4096.0);
        performance.write(dir.path()).unwrap();
        assert_eq!(Performance::read(dir.path()).unwrap(), performance);
        let text = std::fs::read_to_string(dir.path().join(PERFORMANCE_FILE)).unwrap();
        assert!(text.starts_with("{\n  \"total_samples\": 160,\n  \"total_time\": 10.0,\n"));
        assert!(text.contains("\"weights\": 0.25"));
    }
}
