//! The points of `metrics.jsonl` and of the journal: a training step or an evaluation, as a line of JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// One committed training step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainMetrics {
    /// The step just committed, counted from 1.
    pub step: u64,
    /// Mean loss over the step's tokens in nats.
    pub loss: f32,
    /// Learning rate of the update.
    pub learning_rate: f32,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Number of tokens that counted in the loss of this step.
    pub tokens: u64,
    /// Wall time of this step in seconds.
    pub seconds: f64,
    /// Samples per second as in progress lines: over the last log interval, smoothed. Before the first progress line,
    /// the rate of this step.
    pub rate: f64,
    /// Number of batches that the run has skipped up to this step.
    pub skipped_batches: u64,
    /// The metrics of the model's graph, such as `train/accuracy`.
    pub metrics: BTreeMap<String, f32>,
}

/// One evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalMetrics {
    /// Number of committed training steps in the evaluated parameters.
    pub step: u64,
    /// Mean loss over all evaluated tokens in nats.
    pub loss: f32,
    /// Number of tokens that counted in the loss.
    pub tokens: u64,
    /// Wall time of the evaluation in seconds.
    pub seconds: f64,
    /// Samples per second of the evaluation.
    pub rate: f64,
    /// Further results under the names of the model zoo: `eval/lm_perplexity`, `eval/accuracy`.
    pub metrics: BTreeMap<String, f32>,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "LineFields", from = "LineFields")]
pub enum MetricPoint {
    Train(TrainMetrics),
    Eval(EvalMetrics),
}

impl MetricPoint {
    pub fn step(&self) -> u64 {
        match self {
            Self::Train(point) => point.step,
            Self::Eval(point) => point.step,
        }
    }
}

impl From<TrainMetrics> for MetricPoint {
    fn from(point: TrainMetrics) -> Self {
        Self::Train(point)
    }
}

impl From<EvalMetrics> for MetricPoint {
    fn from(point: EvalMetrics) -> Self {
        Self::Eval(point)
    }
}

/// The keys of a line, in the order in which they are written.
#[derive(Clone, Serialize, Deserialize)]
struct LineFields {
    step: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(deserialize_with = "null_is_nan")]
    loss: f32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    learning_rate: Option<f32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grad_norm: Option<f32>,
    #[serde(default)]
    tokens: u64,
    #[serde(default)]
    seconds: f64,
    #[serde(default)]
    rate: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    skipped_batches: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metrics: BTreeMap<String, Option<f32>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Option::<f32>::deserialize(deserializer).map(or_nan)
}

fn or_nan(value: Option<f32>) -> f32 {
    value.unwrap_or(f32::NAN)
}

fn written(metrics: BTreeMap<String, f32>) -> BTreeMap<String, Option<f32>> {
    metrics.into_iter().map(|(name, value)| (name, Some(value))).collect()
}

fn read_back(metrics: BTreeMap<String, Option<f32>>) -> BTreeMap<String, f32> {
    metrics.into_iter().map(|(name, value)| (name, or_nan(value))).collect()
}

impl From<MetricPoint> for LineFields {
    fn from(point: MetricPoint) -> Self {
        match point {
            MetricPoint::Train(point) => Self {
                step: point.step,
                mode: None,
                loss: point.loss,
                learning_rate: Some(point.learning_rate),
                grad_norm: Some(point.grad_norm),
                tokens: point.tokens,
                seconds: point.seconds,
                rate: point.rate,
                skipped_batches: point.skipped_batches,
                metrics: written(point.metrics),
            },
            MetricPoint::Eval(point) => Self {
                step: point.step,
                mode: Some("eval".into()),
                loss: point.loss,
                learning_rate: None,
                grad_norm: None,
                tokens: point.tokens,
                seconds: point.seconds,
                rate: point.rate,
                skipped_batches: 0,
                metrics: written(point.metrics),
            },
        }
    }
}

impl From<LineFields> for MetricPoint {
    fn from(fields: LineFields) -> Self {
        if fields.mode.as_deref() == Some("eval") {
            Self::Eval(EvalMetrics {
                step: fields.step,
                loss: fields.loss,
                tokens: fields.tokens,
                seconds: fields.seconds,
                rate: fields.rate,
                metrics: read_back(fields.metrics),
            })
        } else {
            Self::Train(TrainMetrics {
                step: fields.step,
                loss: fields.loss,
                learning_rate: or_nan(fields.learning_rate),
                grad_norm: or_nan(fields.grad_norm),
                tokens: fields.tokens,
                seconds: fields.seconds,
                rate: fields.rate,
                skipped_batches: fields.skipped_batches,
                metrics: read_back(fields.metrics),
            })
        }
    }
}
