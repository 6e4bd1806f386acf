//! The metrics of an evaluation under the names that the public model zoo gives them.

use millrace_engine::coordinator::Evaluation;
use millrace_params::{EncoderTask, ModelFamily, ModelSpec};

/// Returns what an evaluation of a model reports besides its loss.
///
/// Only models that predict tokens have a perplexity. The F1 score of a classifier of two classes is the micro average
/// over both, as in the model zoo, and thus equal to the accuracy.
pub fn eval_metrics(model: &ModelSpec, evaluation: &Evaluation) -> Vec<(&'static str, f64)> {
    let accuracy = evaluation.accuracy();
    match model.encoder.as_ref().map(|encoder| &encoder.task) {
        None if model.family == ModelFamily::VisionTransformer => vec![("eval/accuracy_cls", accuracy)],
        None if model.image.is_some() => vec![("eval/accuracy", accuracy)],
        None => vec![("eval/accuracy", accuracy), ("eval/lm_perplexity", evaluation.perplexity())],
        Some(EncoderTask::Pretraining { masked_token_weight, predicts_next_sentence, .. }) => {
            let next_sentence = ("eval/accuracy_cls", evaluation.other_accuracy());
            let perplexity = (evaluation.main_loss() / masked_token_weight).exp();
            let mut metrics = if *predicts_next_sentence { vec![next_sentence] } else { Vec::new() };
            metrics.extend([("eval/accuracy_masked_lm", accuracy), ("eval/mlm_perplexity", perplexity)]);
            metrics
        }
        Some(EncoderTask::Classifier { classes: 2, .. }) => {
            vec![("eval/accuracy", accuracy), ("eval/f1_score", accuracy)]
        }
        Some(_) => vec![("eval/accuracy", accuracy)],
    }
}

#[cfg(test)]
mod tests {
    use millrace_engine::types::OtherLosses;
    use millrace_params::{EncoderOptions, ModelSize, Nonlinearity};

    use super::*;

    #[test]
    fn names_depend_on_what_the_model_predicts() {
        let sizes =
            ModelSize { vocab_size: 8, hidden_size: 4, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 4 };
        let decoder = ModelSpec::gpt2(sizes);
        let other = OtherLosses { loss: 8.0, labels: 4, correct: 1 };
        let evaluation = Evaluation { step: 1, loss: 0.0, tokens: 8, correct: 6, other, batches: 1 };
        let expected = [("eval/accuracy", 0.75), ("eval/lm_perplexity", 1.0)];
        assert_eq!(eval_metrics(&decoder, &evaluation), expected);
        let metrics = |task| {
            let encoder = EncoderOptions {
                use_segment_embedding: true,
                pooler_nonlinearity: Nonlinearity::Tanh,
                task,
                norm_first: false,
                is_embedding_plain: false,
                mask_token: None,
                has_token_dropout: false,
            };
            eval_metrics(&ModelSpec { encoder: Some(encoder), ..decoder.clone() }, &evaluation)
        };
        let pretraining = EncoderTask::Pretraining {
            max_predictions: None,
            masked_token_weight: 0.5,
            nonlinearity: Nonlinearity::Gelu,
            predicts_next_sentence: true,
        };
        // Without the other losses, 8 / 8 tokens, the loss is -1; the weight of masked tokens is 0.5.
        let perplexity = (-2.0_f64).exp();
        let expected =
            [("eval/accuracy_cls", 0.25), ("eval/accuracy_masked_lm", 0.75), ("eval/mlm_perplexity", perplexity)];
        assert_eq!(metrics(pretraining), expected);
        let of_classes = |classes| metrics(EncoderTask::Classifier { classes, dropout_rate: 0.0 });
        assert_eq!(of_classes(3), [("eval/accuracy", 0.75)]);
        assert_eq!(of_classes(2), [("eval/accuracy", 0.75), ("eval/f1_score", 0.75)]);
    }
}
