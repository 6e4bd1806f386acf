//! The kinds of model and data that decide which other keys a document has.
//!
//! A document of a kind that is not supported has many keys that are unknown here. Only its kind is then reported.

use super::Params;
use crate::error::{ParamsError, ParamsProblem, ParamsProblemKind};
use crate::job::ModelFamily;
use crate::keywords::{ATTENTION_MODULES, FAMILIES, PROCESSORS, Processor};
use crate::resolve::ResolveContext;
use crate::trainer;
use crate::yaml::{LineNumbers, YamlNode, YamlValue};

/// Keys of `model` that show which family a model is of, and the families, none of which is supported.
const FAMILY_KEYS: [(&str, &str); 4] = [
    ("projected_dims", "linformer"),
    ("encoder_filters", "unet"),
    ("embedding_size", "layers_api_demo"),
    ("use_dinov2_classifier", "dino"),
];

/// Returns the kinds in a document that are not supported, as problems; `None` if all are supported.
pub(super) fn unsupported_kinds(root: &YamlNode) -> Option<ParamsError> {
    if let Some(problem) = other_document(root) {
        return Some(problem.into());
    }
    if let Some(problem) = other_family(root) {
        return Some(problem.into());
    }
    let mut lines = LineNumbers::default();
    let mut value_of = |section: &str, key: &str| {
        let node = entry(entry(root, section)?, key)?;
        lines.insert(format!("{section}.{key}"), node.line);
        if let YamlValue::Scalar { text, .. } = &node.value { Some(text.as_str()) } else { None }
    };
    let [name, module] = ["name", "attention_module"].map(|key| value_of("model", key));
    let processor = value_of("train_input", "data_processor");
    let mut check = ResolveContext::new(&lines);
    check.keyword("model.name", name, ModelFamily::Gpt2, &FAMILIES);
    check.keyword("model.attention_module", module, false, &ATTENTION_MODULES);
    check.keyword("train_input.data_processor", processor, Processor::Text, &PROCESSORS);
    ParamsError::check(check.problems).err()
}

/// Returns the problem of a document that has none of the sections of params.
fn other_document(root: &YamlNode) -> Option<ParamsProblem> {
    let YamlValue::Map(entries) = &root.value else { return None };
    let first = entries.first()?;
    if entries.iter().any(|entry| Params::REFERENCE.key(&entry.key).is_some()) {
        return None;
    }
    let sections: Vec<&str> = super::sections().map(|(name, _)| name).collect();
    let message = "this is not a params file: it has none of their sections".to_owned();
    let hint = format!("the sections are {}; newer files have all of them below trainer", sections.join(", "));
    Some(trainer::problem(ParamsProblemKind::UnknownKey, first.line, &first.key, message, &hint))
}

/// Returns the problem of a model whose keys are those of another family.
fn other_family(root: &YamlNode) -> Option<ParamsProblem> {
    let model = entry(root, "model")?;
    let found = |(key, family): &(&str, &'static str)| Some((format!("model.{key}"), *family, entry(model, key)?.line));
    let (key, family, line) = FAMILY_KEYS.iter().find_map(found)?;
    let message = format!("{key} is a key of {family}, which is not supported yet");
    Some(trainer::problem(ParamsProblemKind::NotSupported, line, &key, message, "use a model of another family"))
}

/// Returns the value of a key of a mapping.
fn entry<'a>(node: &'a YamlNode, key: &str) -> Option<&'a YamlNode> {
    let YamlValue::Map(entries) = &node.value else { return None };
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
}

#[cfg(test)]
mod tests {
    use crate::Params;

    #[test]
    fn kinds_that_are_not_supported_hide_unknown_keys() {
        let report = |text: &str| Params::parse_yaml(text).unwrap_err().report();
        assert!(
            report("model:\n  beta: 1\n  name: dpo\n").starts_with("line 3: model.name dpo is not supported yet\n")
        );
        let latent = "model:\n  extra_attention_params: {rank: 1}\n  attention_module: multilatent_attention\n";
        let expected = "line 3: model.attention_module multilatent_attention is not supported yet\n";
        assert!(report(latent).starts_with(expected), "{}", report(latent));
        let data = report("train_input:\n  n_gram: 3\n  data_processor: GenomicDataProcessor\n");
        let expected = "line 3: train_input.data_processor is \"GenomicDataProcessor\", which is unknown\n";
        assert!(data.starts_with(expected) && !data.contains("n_gram"), "{data}");
        let phased = report("trainer: {init: {model: {name: dpo, beta: 1}}}");
        assert!(phased.starts_with("line 1: trainer.init.model.name dpo is not"), "{phased}");
        let linear = report("model: {projected_dims: 256, attention_style: linformer-shared-kv}\n");
        assert!(linear.starts_with("line 1: model.projected_dims is a key of linformer"), "{linear}");
        assert!(!linear.contains("attention_style"), "{linear}");
        let other = report("width: 3\ndepth: 4\n");
        assert!(other.starts_with("line 1: this is not a params file") && !other.contains("depth"), "{other}");
        assert!(report("model: {name: gpt2, beta: 1}").contains("model.beta is not a known key"));
    }
}
