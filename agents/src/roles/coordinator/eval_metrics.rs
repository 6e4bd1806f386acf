//! The metrics of an evaluation under the names that the public model zoo gives them.

use millrace_engine::coordinator::Evaluation;
use millrace_params::{EncoderTask, ModelSpec};

/// Returns what an evaluation of a model reports besides its loss.
///
/// Only models that predict the next token have a perplexity.
pub fn eval_metrics(model: &ModelSpec, evaluation: &Evaluation) -> Vec<(&'static str, f64)> {
    let accuracy = evaluation.accuracy();
    match model.encoder.as_ref().map(|encoder| &encoder.task) {
        None if model.image.is_some() => vec![("eval/accuracy", accuracy)],
        None => vec![("eval/accuracy", accuracy), ("eval/lm_perplexity", evaluation.perplexity())],
        Some(EncoderTask::Pretraining { .. }) => vec![("eval/accuracy_masked_lm", accuracy)],
        Some(_) => vec![("eval/accuracy", accuracy)],
    }
}

#[cfg(test)]
mod tests {
    use millrace_params::{EncoderOptions, ModelSize, Nonlinearity};

    use super::*;

    #[test]
    fn names_depend_on_what_the_model_predicts() {
        let sizes =
            ModelSize { vocab_size: 8, hidden_size: 4, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 4 };
        let decoder = ModelSpec::gpt2(sizes);
        let evaluation = Evaluation { step: 1, loss: 0.0, tokens: 8, correct: 6, batches: 1 };
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
        assert_eq!(metrics(pretraining), [("eval/accuracy_masked_lm", 0.75)]);
        assert_eq!(metrics(EncoderTask::Classifier { classes: 2, dropout_rate: 0.0 }), [("eval/accuracy", 0.75)]);
    }
}
