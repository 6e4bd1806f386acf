//! Resolves `model` of a job whose model is a graph document.

use super::check::ResolveContext;
use super::model::{self, MAX_VOCABULARY, RUN_KEYS};
use crate::document::ModelParams;
use crate::job::{ModelFamily, ModelSize, ModelSpec};
use crate::yaml::ParamsSection;

/// The keys that a model with a graph document may have, besides those of every model.
const KEYS: &[&str] = &["graph", "vocab_size"];

/// Resolves the section of a model whose graph is in the file `path`.
pub(super) fn resolve(check: &mut ResolveContext<'_>, p: &ModelParams, path: &str) -> ModelSpec {
    for key in p.given_keys().into_iter().filter(|key| !KEYS.contains(key) && !RUN_KEYS.contains(key)) {
        let message = "has no meaning for a model with a graph document, which contains all of the model";
        check.report_invalid(&format!("model.{key}"), message, "leave it out");
    }
    if path.trim().is_empty() {
        check.report_missing("model.graph", "name the file of the graph document");
    }
    let (loss_scaling, loss_weight) = model::loss(check, p, ModelFamily::Graph);
    let vocab_size = check.count("model.vocab_size", p.vocab_size, MAX_VOCABULARY, MAX_VOCABULARY);
    // Sizes that only families have; nothing reads them.
    let size = ModelSize { vocab_size, hidden_size: 1, num_hidden_layers: 1, num_heads: 1, max_position_embeddings: 1 };
    ModelSpec {
        family: ModelFamily::Graph,
        use_position_embedding: false,
        precision: model::precision(check, p),
        loss_scaling,
        loss_weight,
        compute_eval_metrics: p.compute_eval_metrics.unwrap_or(true),
        graph: Some(path.to_owned()),
        ..ModelSpec::gpt2(size)
    }
}
