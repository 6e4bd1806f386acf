//! The metrics of a model: of an evaluation under the names that the public model zoo gives them, and of the training
//! steps of a graph document under its own names.

use millrace_emulator::graph::{Graph, GraphMetric};
use millrace_emulator::ops::OpKind;
use millrace_engine::coordinator::Evaluation;
use millrace_params::{EncoderTask, ModelFamily, ModelSpec};

use crate::control::job::CompiledJob;

/// Maximum elements of a metric of a graph document that are reported.
const MAX_REPORTED_ELEMENTS: usize = 64;
/// The metric of a classifier of tokens: the numbers of correct, predicted and actual tokens of each class.
const CLASS_COUNTS: &str = "class_counts";

/// The metrics of summaries: words, and pairs of words, that predicted and actual ones have in common.
const ROUGE: [&str; 2] = ["rouge1", "rouge2"];

/// What evaluations and training steps report besides their loss.
pub struct ModelMetrics {
    model: ModelSpec,
    /// Samples of a batch of the training.
    batch: u64,
    /// Samples of a batch of an evaluation.
    eval_batch: u64,
    /// Whether the main loss is one of classes, so that there are correct and wrong predictions.
    predicts_classes: bool,
    /// The metrics of the graph, by the name of each.
    metrics: Vec<(String, MetricSums)>,
    /// Classes of tokens whose F1 scores count.
    entity_classes: Option<Vec<usize>>,
}

/// Where the sums of a metric are.
struct MetricSums {
    sums: std::ops::Range<usize>,
    weight: Option<usize>,
}

impl ModelMetrics {
    /// Returns the metrics of a job. `entity_classes` are the classes whose F1 scores count; `None` for all.
    pub fn new(compiled: &CompiledJob, entity_classes: Option<Vec<usize>>) -> Self {
        let graph = &compiled.plan.graph;
        let model = compiled.job.model.clone();
        let batches = (compiled.plan.leaves.batch(), compiled.plan.eval_leaves.batch());
        Self::of_graph(graph, model, batches, entity_classes)
    }

    fn of_graph(
        graph: &Graph,
        model: ModelSpec,
        (batch, eval_batch): (u64, u64),
        entity_classes: Option<Vec<usize>>,
    ) -> Self {
        let main_loss = graph.nodes.last().map(|node| node.op);
        let predicts_classes = matches!(main_loss, Some(OpKind::CrossEntropy(_) | OpKind::LogitsCrossEntropy(_)));
        let sums =
            |GraphMetric { name, sums, weight, .. }: GraphMetric<'_>| (name.to_owned(), MetricSums { sums, weight });
        let metrics = graph.metrics().map(sums).collect();
        Self { model, batch, eval_batch, predicts_classes, metrics, entity_classes }
    }

    /// Returns the metrics of a training step from their sums, with their names; none without sums. Only graph
    /// documents have any.
    pub fn of_step(&self, sums: &[f64]) -> Vec<(String, f64)> {
        let is_reported = self.model.compute_eval_metrics && self.model.graph.is_some();
        if is_reported { self.means("train", sums, self.batch) } else { Vec::new() }
    }

    /// Returns the metrics of `evaluation`, with their names.
    ///
    /// Only models that predict tokens have a perplexity. The F1 score of a classifier of two classes is the micro
    /// average over both, as in the model zoo, and thus equal to the accuracy; that of a classifier of tokens is the
    /// mean over all classes of entities.
    pub fn of_evaluation(&self, evaluation: &Evaluation) -> Vec<(String, f64)> {
        if !self.model.compute_eval_metrics {
            return Vec::new();
        }
        let accuracy = evaluation.accuracy();
        let named =
            |metrics: &[(&str, f64)]| metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        match self.model.encoder.as_ref().map(|encoder| &encoder.task) {
            None if self.model.graph.is_some() => self.of_document(evaluation),
            None if self.model.family == ModelFamily::VisionTransformer => named(&[("eval/accuracy_cls", accuracy)]),
            None if self.model.image.is_some() => named(&[("eval/accuracy", accuracy)]),
            None => named(&[("eval/accuracy", accuracy), ("eval/lm_perplexity", evaluation.perplexity())]),
            Some(EncoderTask::Pretraining { masked_token_weight, predicts_next_sentence, .. }) => {
                let next_sentence = ("eval/accuracy_cls", evaluation.other_accuracy());
                let perplexity = (evaluation.main_loss / masked_token_weight).exp();
                let mut metrics = if *predicts_next_sentence { vec![next_sentence] } else { Vec::new() };
                metrics.extend([("eval/accuracy_masked_lm", accuracy), ("eval/mlm_perplexity", perplexity)]);
                named(&metrics)
            }
            Some(EncoderTask::Classifier { classes: 2, .. }) => {
                named(&[("eval/accuracy", accuracy), ("eval/f1_score", accuracy)])
            }
            Some(EncoderTask::TokenClassifier { .. }) => {
                let mut metrics = vec![("eval/accuracy", accuracy)];
                let counts = self.sums_of(CLASS_COUNTS, evaluation);
                metrics.extend(counts.map(|counts| ("eval/f1_score", self.macro_f1(counts))));
                named(&metrics)
            }
            Some(EncoderTask::Summarization { .. }) => {
                let mut metrics = vec![("eval/accuracy".to_owned(), accuracy)];
                metrics.extend(ROUGE.iter().flat_map(|name| self.rouge(name, evaluation)));
                metrics
            }
            Some(EncoderTask::Classifier { .. } | EncoderTask::QuestionAnswering {}) => {
                named(&[("eval/accuracy", accuracy)])
            }
        }
    }

    /// Returns the metrics of a model with a graph document: those of its main loss, and its own, which may replace
    /// them.
    fn of_document(&self, evaluation: &Evaluation) -> Vec<(String, f64)> {
        let mut all = Vec::new();
        if self.predicts_classes {
            all.push(("eval/accuracy".to_owned(), evaluation.accuracy()));
            all.push(("eval/perplexity".to_owned(), evaluation.main_loss.exp()));
        }
        let own = self.means("eval", &evaluation.metrics, self.eval_batch * evaluation.batches);
        all.retain(|(name, _)| own.iter().all(|(own, _)| own != name));
        all.extend(own);
        all
    }

    /// Returns the means of the metrics of the graph over `samples` samples, from the sums of all metrics. Their names
    /// begin with `mode`.
    fn means(&self, mode: &str, all_sums: &[f64], samples: u64) -> Vec<(String, f64)> {
        let mut means = Vec::new();
        for (name, MetricSums { sums, weight }) in &self.metrics {
            let weight = weight.map_or(samples as f64, |index| all_sums.get(index).copied().unwrap_or_default());
            let sums = all_sums.get(sums.clone()).unwrap_or_default();
            let of_elements = sums.iter().map(|sum| sum / weight).take(MAX_REPORTED_ELEMENTS);
            match sums.len() {
                1 => means.extend(of_elements.map(|mean| (format!("{mode}/{name}"), mean))),
                _ => {
                    means.extend(of_elements.enumerate().map(|(index, mean)| (format!("{mode}/{name}.{index}"), mean)))
                }
            }
        }
        means
    }

    /// Returns the sums of a metric, if the graph has it.
    fn sums_of<'e>(&self, metric: &str, evaluation: &'e Evaluation) -> Option<&'e [f64]> {
        let (_, sums) = self.metrics.iter().find(|(name, _)| name == metric)?;
        evaluation.metrics.get(sums.sums.clone())
    }

    /// Returns precision, recall and F1 score of predicted summaries; nothing if the words of summaries are unknown. A
    /// score without words is 0.
    fn rouge(&self, name: &str, evaluation: &Evaluation) -> Vec<(String, f64)> {
        let Some(&[common, predicted, actual]) = self.sums_of(name, evaluation) else { return Vec::new() };
        let ratio = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let scores = [
            ("precision", ratio(common, predicted)),
            ("recall", ratio(common, actual)),
            ("f1_score", ratio(2.0 * common, predicted + actual)),
        ];
        scores.map(|(score, value)| (format!("eval/{name}/{score}"), value)).to_vec()
    }

    /// Returns the mean of the F1 scores of the classes that count, from three numbers of each class: of tokens that
    /// are predicted correctly, that are predicted to have the class, and that have it.
    fn macro_f1(&self, counts: &[f64]) -> f64 {
        let classes = counts.len() / 3;
        let f1 = |class: usize| {
            let [correct, predicted, actual] = [0, 1, 2].map(|part| counts[part * classes + class]);
            if predicted + actual > 0.0 { 2.0 * correct / (predicted + actual) } else { 0.0 }
        };
        let scores: Vec<f64> = match &self.entity_classes {
            Some(entities) => entities.iter().filter(|class| **class < classes).map(|class| f1(*class)).collect(),
            None => (0..classes).map(f1).collect(),
        };
        scores.iter().sum::<f64>() / scores.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use millrace_emulator::families;
    use millrace_engine::types::OtherLosses;
    use millrace_params::{EncoderOptions, ModelSize, Nonlinearity};

    use super::*;

    fn decoder() -> ModelSpec {
        let sizes =
            ModelSize { vocab_size: 8, hidden_size: 4, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 4 };
        ModelSpec { compute_eval_metrics: true, ..ModelSpec::gpt2(sizes) }
    }

    fn encoder(task: EncoderTask) -> ModelSpec {
        let encoder = EncoderOptions {
            use_segment_embedding: true,
            pooler_nonlinearity: Nonlinearity::Tanh,
            task,
            norm_first: false,
            is_embedding_plain: false,
            mask_token: None,
            has_token_dropout: false,
        };
        ModelSpec { encoder: Some(encoder), ..decoder() }
    }

    fn metrics(model: &ModelSpec, evaluation: &Evaluation, entities: Option<Vec<usize>>) -> Vec<(String, f64)> {
        let graph = families::graph(model, 4).unwrap();
        ModelMetrics::of_graph(&graph, model.clone(), (2, 2), entities).of_evaluation(evaluation)
    }

    fn named(metrics: &[(&str, f64)]) -> Vec<(String, f64)> {
        metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn names_depend_on_what_the_model_predicts() {
        let other = OtherLosses { loss: 8.0, labels: 4, correct: 1 };
        let evaluation =
            Evaluation { step: 1, main_loss: -1.0, tokens: 8, correct: 6, other, batches: 1, ..Evaluation::default() };
        let expected = named(&[("eval/accuracy", 0.75), ("eval/lm_perplexity", 1.0)]);
        assert_eq!(metrics(&decoder(), &evaluation, None), expected);
        let pretraining = EncoderTask::Pretraining {
            max_predictions: None,
            masked_token_weight: 0.5,
            nonlinearity: Nonlinearity::Gelu,
            predicts_next_sentence: true,
        };
        // The weight of masked tokens is 0.5.
        let perplexity = (-2.0_f64).exp();
        let expected =
            [("eval/accuracy_cls", 0.25), ("eval/accuracy_masked_lm", 0.75), ("eval/mlm_perplexity", perplexity)];
        assert_eq!(metrics(&encoder(pretraining), &evaluation, None), named(&expected));
        let of_classes =
            |classes| metrics(&encoder(EncoderTask::Classifier { classes, dropout_rate: 0.0 }), &evaluation, None);
        assert_eq!(of_classes(3), named(&[("eval/accuracy", 0.75)]));
        assert_eq!(of_classes(2), named(&[("eval/accuracy", 0.75), ("eval/f1_score", 0.75)]));
    }

    /// Metrics of a document replace those of its main loss that have their names. Families report none in training.
    #[test]
    fn metrics_of_a_document_are_means_over_samples_or_their_weight() {
        let graph = families::graph(&decoder(), 4).unwrap();
        let document = ModelSpec { graph: Some("graph.json".into()), ..decoder() };
        let mut metrics = ModelMetrics::of_graph(&graph, document, (4, 2), None);
        metrics.metrics = vec![
            ("accuracy".into(), MetricSums { sums: 0..1, weight: Some(1) }),
            ("parts".into(), MetricSums { sums: 2..4, weight: None }),
        ];
        let sums = [3.0, 6.0, 2.0, 8.0];
        let expected = named(&[("train/accuracy", 0.5), ("train/parts.0", 0.5), ("train/parts.1", 2.0)]);
        assert_eq!(metrics.of_step(&sums), expected);
        let evaluation = Evaluation { tokens: 8, metrics: sums.to_vec(), batches: 1, ..Evaluation::default() };
        let expected =
            named(&[("eval/perplexity", 1.0), ("eval/accuracy", 0.5), ("eval/parts.0", 1.0), ("eval/parts.1", 4.0)]);
        assert_eq!(metrics.of_evaluation(&evaluation), expected);
        assert_eq!(metrics.of_step(&[]), []);
        metrics.model = decoder();
        assert_eq!(metrics.of_step(&sums), []);
    }

    #[test]
    fn summaries_are_compared_by_their_words() {
        let model = encoder(EncoderTask::Summarization { max_sentences: 2, compares_words: true });
        let sums = vec![6.0, 8.0, 12.0, 0.0, 0.0, 3.0];
        let evaluation = Evaluation { tokens: 4, correct: 3, metrics: sums, batches: 1, ..Evaluation::default() };
        let expected = [
            ("eval/accuracy", 0.75),
            ("eval/rouge1/precision", 0.75),
            ("eval/rouge1/recall", 0.5),
            ("eval/rouge1/f1_score", 0.6),
            ("eval/rouge2/precision", 0.0),
            ("eval/rouge2/recall", 0.0),
            ("eval/rouge2/f1_score", 0.0),
        ];
        assert_eq!(metrics(&model, &evaluation, None), named(&expected));
        let without_words = encoder(EncoderTask::Summarization { max_sentences: 2, compares_words: false });
        assert_eq!(metrics(&without_words, &evaluation, None), named(&expected[..1]));
    }

    /// Class 0 is never predicted and never occurs, so its score is 0.
    #[test]
    fn f1_score_is_the_mean_over_classes_of_entities() {
        let model = encoder(EncoderTask::TokenClassifier { classes: 3, dropout_rate: 0.0, counts_padding: false });
        let counts = vec![0.0, 3.0, 1.0, 0.0, 4.0, 2.0, 0.0, 4.0, 2.0];
        let evaluation = Evaluation { tokens: 6, correct: 4, metrics: counts, batches: 1, ..Evaluation::default() };
        for (entities, score) in
            [(None, (0.75 + 0.5) / 3.0), (Some(vec![1, 2]), 0.625), (Some(vec![1, 9]), 0.75), (Some(vec![]), 0.0)]
        {
            let expected = named(&[("eval/accuracy", 4.0 / 6.0), ("eval/f1_score", score)]);
            assert_eq!(metrics(&model, &evaluation, entities), expected);
        }
    }
}
