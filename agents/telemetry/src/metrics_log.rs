//! `metrics.jsonl`: the metrics of training steps and evaluations, one JSON line each, for scripts.
//!
//! ```json
//! {"step":1,"loss":5.560123,"learning_rate":0.0006,"grad_norm":1.25,"tokens":4096,"seconds":0.42,"rate":1.9}
//! {"step":2,"loss":5.481,"learning_rate":0.0006,"grad_norm":1.2,"tokens":4096,"seconds":0.4,"rate":1.9,"metrics":{"train/accuracy":0.5}}
//! {"step":100,"mode":"eval","loss":1.9871,"tokens":65536,"seconds":3.1,"rate":41.2,"metrics":{"eval/lm_perplexity":7.294}}
//! ```
//!
//! Invariants:
//! * Each training step appears once, after any number of crashes and resumes: opening the file at the step where a run
//!   resumes removes later points, by one rename.
//! * f32 values are written as the shortest decimal that reads back as the same f32, so equal text means equal bits. A
//!   value that is not finite is written as `null` (JSON has no representation of it) and read as NaN.
//! * Unknown keys are ignored on reading, because later versions may add some.

use std::io::Write;
use std::path::Path;

use serde::Serialize;

use crate::atomic_file;
use crate::backlog::Backlog;
use crate::error::{Error, Result};
use crate::jsonl::{LineReader, ReadLine};
pub use crate::metric_point::{EvalMetrics, MetricPoint, TrainMetrics};

/// Name of the file in model_dir.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// Appends to a `metrics.jsonl`. A line has been passed to the operating system when `append` returns.
#[derive(Debug)]
pub struct MetricsLog {
    file: Backlog,
    opening: OpenSummary,
}

/// The effect of opening an existing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenSummary {
    pub kept: u64,
    /// Number of points removed because their step is after the step where the run resumes.
    pub beyond: u64,
    /// Number of lines removed because they are unreadable: torn by a killed run, or damaged.
    pub unreadable: u64,
    /// Highest training step of all points, including removed ones; 0 if there is none.
    pub last_step: u64,
}

impl MetricsLog {
    /// Opens or creates `metrics.jsonl` in `model_dir` for a run that continues after `resume_step` committed steps.
    ///
    /// Removes all later points and all unreadable lines. A run from step 0 starts with an empty file.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then as before, or only the points to be removed are missing.
    pub fn open(model_dir: &Path, resume_step: u64) -> Result<Self> {
        Self::open_keeping(model_dir, |point| resume_step > 0 && point.step() <= resume_step)
    }

    /// Opens or creates `metrics.jsonl` for runs that only evaluate: all readable points are kept.
    ///
    /// # Errors
    /// [`Error::Io`]; the file is then as before, or only the points to be removed are missing.
    pub fn open_for_evaluation(model_dir: &Path) -> Result<Self> {
        Self::open_keeping(model_dir, |_| true)
    }

    fn open_keeping(model_dir: &Path, keep: impl Fn(&MetricPoint) -> bool) -> Result<Self> {
        let path = model_dir.join(METRICS_FILE);
        let mut opening = OpenSummary::default();
        for_each_line(&path, |_, point| {
            if let Some(MetricPoint::Train(train)) = &point {
                opening.last_step = opening.last_step.max(train.step);
            }
            match point {
                Some(point) if keep(&point) => opening.kept += 1,
                Some(_) => opening.beyond += 1,
                None => opening.unreadable += 1,
            }
        })?;
        if opening.beyond + opening.unreadable > 0 {
            rewrite(&path, keep)?;
        }
        let file = Backlog::open(path)?;
        Ok(Self { file, opening })
    }

    /// Returns what opening the file kept and removed.
    pub fn opening(&self) -> OpenSummary {
        self.opening
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Appends one point. It survives the death of this process; [`MetricsLog::sync`] makes it survive a power cut.
    ///
    /// # Errors
    /// [`Error::Io`]. The line is then not in the file; it is kept in memory and written before the next one.
    pub fn append(&mut self, point: &MetricPoint) -> Result<()> {
        let line = to_line(point).map_err(Error::io("append to", self.file.path()))?;
        self.file.append(line)
    }

    /// Writes the points that could not be written before.
    ///
    /// # Errors
    /// [`Error::Io`]; points that are not written stay in memory.
    pub fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }

    /// Returns the number of points dropped because too many were waiting to be written (4 MiB).
    pub const fn dropped(&self) -> u64 {
        self.file.dropped()
    }

    /// Makes all points written so far survive a power cut. Must be called with every checkpoint.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        self.file.sync()
    }
}

/// Returns all readable points of `metrics.jsonl` in `model_dir`, in file order; none if the file does not exist.
///
/// # Errors
/// [`Error::Io`].
pub fn read(model_dir: &Path) -> Result<Vec<MetricPoint>> {
    let mut points = Vec::new();
    for_each_line(&model_dir.join(METRICS_FILE), |_, point| points.extend(point))?;
    Ok(points)
}

/// Returns `value` as one line of JSON, with its line feed.
pub(crate) fn to_line(value: &impl Serialize) -> std::io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

/// Calls `see` with each line and its point, `None` if the line is unreadable.
fn for_each_line(path: &Path, mut see: impl FnMut(&[u8], Option<MetricPoint>)) -> Result<()> {
    let Some(mut lines) = LineReader::open_if_exists(path.to_path_buf())? else {
        return Ok(());
    };
    loop {
        match lines.next()? {
            ReadLine::Whole(line) => see(line, serde_json::from_slice(line).ok()),
            ReadLine::Oversize => see(b"", None),
            ReadLine::Torn => {
                see(b"", None);
                return Ok(());
            }
            ReadLine::End => return Ok(()),
        }
    }
}

/// Replaces the file by the lines whose points are kept, byte for byte.
fn rewrite(path: &Path, keep: impl Fn(&MetricPoint) -> bool) -> Result<()> {
    atomic_file::replace(path, |file| {
        let mut written = Ok(());
        let visited = for_each_line(path, |line, point| {
            if written.is_ok() && point.is_some_and(|point| keep(&point)) {
                written = file.write_all(line).and_then(|()| file.write_all(b"\n"));
            }
        });
        visited.map_err(std::io::Error::other)?;
        written
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn train(step: u64) -> MetricPoint {
        MetricPoint::Train(TrainMetrics {
            step,
            loss: 5.560_123 / step as f32,
            learning_rate: 6e-4,
            grad_norm: 0.1 + 0.2,
            tokens: 4096,
            seconds: 0.42,
            rate: 1.9,
            skipped_batches: 0,
            metrics: [].into(),
        })
    }

    fn eval(step: u64) -> MetricPoint {
        MetricPoint::Eval(EvalMetrics {
            step,
            loss: 1.9871,
            tokens: 65_536,
            seconds: 3.1,
            rate: 41.2,
            metrics: [("eval/lm_perplexity".to_owned(), 7.294)].into(),
        })
    }

    #[test]
    fn lines_as_documented() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::open(dir.path(), 0).unwrap();
        log.append(&train(1)).unwrap();
        log.append(&eval(1)).unwrap();
        assert_eq!(
            fs::read_to_string(log.path()).unwrap(),
            "{\"step\":1,\"loss\":5.560123,\"learning_rate\":0.0006,\"grad_norm\":0.3,\"tokens\":4096,\"seconds\":0.42,\"rate\":1.9}\n\
             {\"step\":1,\"mode\":\"eval\",\"loss\":1.9871,\"tokens\":65536,\"seconds\":3.1,\"rate\":41.2,\"metrics\":{\"eval/lm_perplexity\":7.294}}\n"
        );
        assert_eq!(read(dir.path()).unwrap(), [train(1), eval(1)]);
    }

    /// Text and bits agree for every f32, including subnormals. A value that is not finite becomes null and then NaN.
    #[test]
    fn every_f32_reads_back_to_its_bits() {
        let mut bits = 0x9E37_79B9_u32;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
            let value = f32::from_bits(bits);
            let point = MetricPoint::Train(TrainMetrics {
                step: 1,
                loss: value,
                learning_rate: value,
                grad_norm: value,
                tokens: 0,
                seconds: 0.0,
                rate: 0.0,
                skipped_batches: 0,
                metrics: [].into(),
            });
            let MetricPoint::Train(read) = serde_json::from_slice(&to_line(&point).unwrap()).unwrap() else {
                panic!("a training line read as an evaluation")
            };
            for read in [read.loss, read.learning_rate, read.grad_norm] {
                assert!(
                    read.to_bits() == bits || read.is_nan() && !value.is_finite(),
                    "{value:e} read back as {read:e}"
                );
            }
        }
    }

    #[test]
    fn each_step_stands_once_after_a_resume() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = MetricsLog::open(dir.path(), 0).unwrap();
        for point in [train(1), train(2), eval(2), train(3), train(4)] {
            log.append(&point).unwrap();
        }
        let path = log.path().to_path_buf();
        let mut text = fs::read(&path).unwrap();
        text.extend(b"\0\0\0\n{\"step\":5,\"lo");
        fs::write(&path, text).unwrap();

        let mut log = MetricsLog::open(dir.path(), 2).unwrap();
        assert_eq!(log.opening(), OpenSummary { kept: 3, beyond: 2, unreadable: 2, last_step: 4 });
        log.append(&train(3)).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [train(1), train(2), eval(2), train(3)]);

        let log = MetricsLog::open_for_evaluation(dir.path()).unwrap();
        assert_eq!(log.opening().kept, 4);
        let log = MetricsLog::open(dir.path(), 0).unwrap();
        assert_eq!(log.opening().beyond, 4);
        assert_eq!(read(dir.path()).unwrap(), []);
    }
}
