//! `performance.json`: what a run achieved, replaced whole whenever it is told anew.
//!
//! The first six keys are those users of the model zoo know; the others are ours.

use std::{collections::BTreeMap, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    atomic_file,
    error::{Error, Result},
    progress::{Rates, per_second},
    stall::StallTotals,
};

/// The file's name in model_dir.
pub const FILE_NAME: &str = "performance.json";

/// What a run achieved so far. A resumed run counts from its resumption.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Performance {
    /// Training samples processed.
    pub total_samples: u64,
    /// Seconds they took.
    pub total_time: f64,
    /// Samples per second over the last log interval, smoothed.
    pub rate: f64,
    /// Samples per second over all of `total_time`.
    pub global_rate: f64,
    /// The same as `global_rate`, under the name other readers look for.
    pub samples_per_sec: f64,
    /// The model's FLOP/s as a percentage of what the machine can do; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops_utilization: Option<f64>,
    /// Training steps committed.
    pub total_steps: u64,
    /// Tokens that counted in the loss.
    pub total_tokens: u64,
    /// Tokens per second over all of `total_time`.
    pub tokens_per_sec: f64,
    /// The model's own floating-point operations (forward and backward, recomputation not counted) per second.
    pub flops_per_sec: f64,
    /// Seconds each agent waited, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stall_seconds: BTreeMap<String, StallTotals>,
    /// What each agent has used.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agents: BTreeMap<String, AgentUsage>,
}

/// What one agent has used since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentUsage {
    /// Seconds spent computing; a system's only.
    pub busy_seconds: f64,
    /// Most resident memory.
    pub peak_rss_bytes: u64,
    /// Bytes of frames received, headers included.
    pub bytes_in: u64,
    /// Bytes of frames sent, headers included.
    pub bytes_out: u64,
}

/// What a run has done, from which [`Performance`] is computed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Training steps committed.
    pub steps: u64,
    /// Training samples.
    pub samples: u64,
    /// Tokens that counted in the loss.
    pub tokens: u64,
    /// The model's FLOPs for one sample, forward and backward.
    pub flops_per_sample: f64,
    /// FLOP/s the machine is capable of, if measured.
    pub peak_flops_per_sec: Option<f64>,
}

impl Performance {
    /// Derives all rates from the work done in `elapsed`; `stall_seconds` is left for the caller to fill.
    pub fn new(work: Work, elapsed: Duration, rates: Rates) -> Self {
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
    /// [`Error::Io`]; the file is then what it was.
    pub fn write(&self, model_dir: &Path) -> Result<()> {
        let path = model_dir.join(FILE_NAME);
        atomic_file::replace(&path, |file| {
            use std::io::Write;
            serde_json::to_writer_pretty(&mut *file, self)?;
            file.write_all(b"\n")
        })
    }

    /// Reads `performance.json` of `model_dir`.
    ///
    /// # Errors
    /// [`Error::Io`], also where the file is not such a document.
    pub fn read(model_dir: &Path) -> Result<Self> {
        let path = model_dir.join(FILE_NAME);
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
        let work =
            Work { steps: 10, samples: 160, tokens: 40_960, flops_per_sample: 2e9, peak_flops_per_sec: Some(1e11) };
        let rates = Rates { rate: 17.0, global_rate: 16.0 };
        let mut performance = Performance::new(work, Duration::from_secs(10), rates);
        let mut stalls = StallTotals::default();
        stalls[StallReason::Weights] = 0.25;
        performance.stall_seconds.insert("cs2-0".into(), stalls);

        assert_eq!(performance.flops_utilization, Some(32.0));
        assert_eq!(performance.tokens_per_sec, 4096.0);
        performance.write(dir.path()).unwrap();
        assert_eq!(Performance::read(dir.path()).unwrap(), performance);
        let text = std::fs::read_to_string(dir.path().join(FILE_NAME)).unwrap();
        assert!(text.starts_with("{\n  \"total_samples\": 160,\n  \"total_time\": 10.0,\n"));
        assert!(text.contains("\"weights\": 0.25"));
    }
}
