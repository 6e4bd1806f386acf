//! Cuts a graph into layers by the module paths of its operators, as a front end records them.
//!
//! ```text
//! path                             layer                     block
//! model.embed_tokens               model.embed_tokens
//! model.layers.0.input_layernorm   model.layers.0.self_attn  model.layers.0
//! model.layers.0.self_attn.q_proj  model.layers.0.self_attn  model.layers.0
//! model.layers.0                   model.layers.0.self_attn  model.layers.0     (the residual sum)
//! model.layers.0.mlp.up_proj       model.layers.0.mlp        model.layers.0
//! model.norm                       lm_head
//! lm_head                          lm_head
//! ```
//!
//! A layer is a module with at most [`MAX_MATRICES`] matrices that does not consist of several modules of which one has
//! more than one matrix: attention, a feed-forward network, an embedding. Operators without a matrix belong to a layer
//! beside them: norms to the next one of their block, sums and other operators without tensors to the one before. A
//! block is the nearest module above a layer whose name ends in a number, as those of a list.

use std::collections::{HashMap, HashSet};

use super::{Layer, OpNode, Tensor, TensorId};

/// Maximum matrices of a module that is one layer: those of attention.
const MAX_MATRICES: usize = 4;

/// Name of a layer that is not in a module below the model.
const WHOLE_MODEL: &str = "model";

/// Maximum length of a path that is distinguished, in names. Names beyond belong to the module above.
const MAX_DEPTH: usize = 16;

/// Returns the layers of operators with these module paths, one for each. The name of a module that is the whole model
/// is empty.
pub(super) fn cut(nodes: &[OpNode], tensors: &[Tensor], paths: &[String]) -> Vec<Layer> {
    let is_matrix = |tensor: &TensorId| tensors.get(*tensor).is_some_and(|tensor| !tensor.is_vector());
    let is_layer = layer_modules(nodes, paths, is_matrix);
    let mut runs: Vec<Run<'_>> = Vec::new();
    for (index, (node, path)) in nodes.iter().zip(paths).enumerate() {
        let module = modules(path).find(|module| is_layer[module]).or(modules(path).last()).unwrap_or_default();
        let run = Run {
            module,
            end: index + 1,
            has_tensors: !node.params.is_empty(),
            has_matrix: node.params.iter().any(is_matrix),
        };
        match runs.last_mut().filter(|last| last.module == module) {
            Some(last) => last.extend(run),
            None => runs.push(run),
        }
    }
    join(&runs)
}

/// Returns for each module whether it is one layer rather than several.
fn layer_modules<'a>(
    nodes: &[OpNode],
    paths: &'a [String],
    is_matrix: impl Fn(&TensorId) -> bool,
) -> HashMap<&'a str, bool> {
    let mut matrices: HashMap<&str, HashSet<TensorId>> = HashMap::new();
    for (node, path) in nodes.iter().zip(paths) {
        for module in modules(path) {
            matrices.entry(module).or_default().extend(node.params.iter().copied().filter(&is_matrix));
        }
    }
    // Number of modules with matrices in each module, and the most matrices of one of them.
    let mut parts: HashMap<&str, (usize, usize)> = HashMap::new();
    for (module, matrices) in matrices.iter().filter(|(module, matrices)| !module.is_empty() && !matrices.is_empty()) {
        let above = module.rsplit_once('.').map_or("", |(above, _)| above);
        let (count, max_matrices) = parts.entry(above).or_default();
        (*count, *max_matrices) = (*count + 1, matrices.len().max(*max_matrices));
    }
    let is_layer = |module: &str, matrices: usize| {
        let (count, max_matrices) = parts.get(module).copied().unwrap_or_default();
        matrices <= MAX_MATRICES && !(count > 1 && max_matrices > 1)
    };
    matrices.iter().map(|(module, matrices)| (*module, is_layer(module, matrices.len()))).collect()
}

/// Adjacent operators of one module.
#[derive(Clone, Copy, Debug)]
struct Run<'a> {
    module: &'a str,
    end: usize,
    has_tensors: bool,
    has_matrix: bool,
}

impl Run<'_> {
    fn extend(&mut self, other: Self) {
        self.end = other.end;
        self.has_tensors |= other.has_tensors;
        self.has_matrix |= other.has_matrix;
    }
}

/// Joins runs without a matrix to layers beside them.
fn join(runs: &[Run<'_>]) -> Vec<Layer> {
    let mut next = None;
    let mut following: Vec<Option<usize>> = (0..runs.len())
        .rev()
        .map(|index| {
            let after = next;
            next = if runs[index].has_matrix { Some(index) } else { next };
            after
        })
        .collect();
    following.reverse();
    let mut layers: Vec<(usize, Layer)> = Vec::new();
    for (index, (run, next)) in runs.iter().zip(following).enumerate() {
        let last = layers.last().map(|(owner, _)| *owner);
        // A norm belongs to the next layer of its block, and what follows it up to there, too.
        let is_before =
            |next: &usize| last == Some(*next) || (run.has_tensors && block(runs[*next].module) == block(run.module));
        let owner = if run.has_matrix { index } else { next.filter(is_before).or(last).or(next).unwrap_or(0) };
        match layers.last_mut().filter(|(last, _)| *last == owner) {
            Some((_, layer)) => layer.nodes.end = run.end,
            None => {
                let (module, start) = (runs[owner].module, layers.last().map_or(0, |(_, layer)| layer.nodes.end));
                let name = if module.is_empty() { WHOLE_MODEL } else { module }.to_owned();
                layers.push((owner, Layer { name, nodes: start..run.end, block: block(module).map(str::to_owned) }));
            }
        }
    }
    layers.into_iter().map(|(_, layer)| layer).collect()
}

/// Returns the modules that a path is in, from the whole model to the path itself.
fn modules(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('.').map(|(index, _)| index).chain([path.len()]).take(MAX_DEPTH);
    [""].into_iter().chain(ends.map(|end| &path[..end]).filter(|module| !module.is_empty()))
}

/// Returns the nearest module above `module` whose name ends in a number.
fn block(module: &str) -> Option<&str> {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let above = modules(module).filter(|above| above.len() < module.len());
    above.filter(|above| is_number(above.rsplit('.').next().unwrap_or_default())).last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Initializer, TensorRole};
    use crate::ops::Add;

    /// Returns the layers of operators with these paths and numbers of matrices and vectors; `name [block] operators`.
    fn layers(modules: &[(&str, usize, usize)]) -> Vec<String> {
        let (mut nodes, mut tensors, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for &(path, matrices, vectors) in modules {
            let shapes = std::iter::repeat_n(vec![2, 2], matrices).chain(std::iter::repeat_n(vec![2], vectors));
            let first = tensors.len();
            tensors.extend(shapes.map(|shape| Tensor {
                name: String::new(),
                shape,
                init: Initializer::Constant { value: 0.0 },
                role: TensorRole::Weight,
                trained: true,
            }));
            nodes.push(OpNode::new(Add, Vec::new(), (first..tensors.len()).collect(), None));
            paths.push(path.to_owned());
        }
        let layers = cut(&nodes, &tensors, &paths);
        assert_eq!(
            layers.iter().flat_map(|layer| layer.nodes.clone()).collect::<Vec<_>>(),
            Vec::from_iter(0..nodes.len())
        );
        let name = |layer: Layer| format!("{} [{}] {}", layer.name, layer.block.unwrap_or_default(), layer.nodes.len());
        layers.into_iter().map(name).collect()
    }

    #[test]
    fn llama_is_cut_into_attention_and_feed_forward_networks() {
        let block = |block: usize| {
            let path = |part: &str| format!("model.layers.{block}{part}");
            let modules = [
                (".input_layernorm", 0, 1),
                (".self_attn.q_proj", 1, 0),
                (".self_attn.k_proj", 1, 0),
                (".self_attn.v_proj", 1, 0),
                (".self_attn", 0, 0),
                (".self_attn.o_proj", 1, 0),
                ("", 0, 0),
                (".post_attention_layernorm", 0, 1),
                ("", 0, 0),
                (".mlp.gate_proj", 1, 0),
                (".mlp.up_proj", 1, 0),
                (".mlp.act_fn", 0, 0),
                (".mlp.down_proj", 1, 0),
                ("", 0, 0),
            ];
            modules.map(|(part, matrices, vectors)| (path(part), matrices, vectors))
        };
        let blocks: Vec<_> = (0..2).flat_map(block).collect();
        let mut modules = vec![("", 0, 0), ("model.embed_tokens", 1, 0)];
        modules.extend(blocks.iter().map(|(path, matrices, vectors)| (path.as_str(), *matrices, *vectors)));
        modules.extend([("model.norm", 0, 1), ("lm_head", 1, 0), ("", 0, 0)]);
        let expected = [
            "model.embed_tokens [] 2",
            "model.layers.0.self_attn [model.layers.0] 7",
            "model.layers.0.mlp [model.layers.0] 7",
            "model.layers.1.self_attn [model.layers.1] 7",
            "model.layers.1.mlp [model.layers.1] 7",
            "lm_head [] 3",
        ];
        assert_eq!(layers(&modules), expected);
    }

    #[test]
    fn norms_after_a_layer_belong_to_it() {
        let modules = [
            ("layer.0.attention.self", 3, 3),
            ("layer.0.attention.output.dense", 1, 1),
            ("layer.0.attention.output", 0, 0),
            ("layer.0.attention.output.LayerNorm", 0, 2),
            ("layer.0.intermediate.dense", 1, 1),
            ("layer.0.output.dense", 1, 1),
            ("layer.0.output.LayerNorm", 0, 2),
            ("layer.1.attention", 4, 1),
            ("layer.1.output.dense", 1, 1),
            ("layer.1.output.LayerNorm", 0, 2),
        ];
        let expected = [
            "layer.0.attention.self [layer.0] 1",
            "layer.0.attention.output [layer.0] 3",
            "layer.0.intermediate [layer.0] 1",
            "layer.0.output [layer.0] 2",
            "layer.1.attention [layer.1] 1",
            "layer.1.output [layer.1] 2",
        ];
        assert_eq!(layers(&modules), expected);
    }

    #[test]
    fn small_and_odd_models_have_layers() {
        assert_eq!(layers(&[("0", 1, 1), ("1", 0, 0), ("2", 1, 1), ("", 0, 0)]), ["model [] 4"]);
        assert_eq!(layers(&[("", 0, 0), ("norm", 0, 1)]), ["model [] 2"]);
        assert_eq!(layers(&[("", 9, 0), ("", 0, 0)]), ["model [] 2"]);
        let long = "a.".repeat(100);
        assert_eq!(layers(&[(&long, 5, 0), ("b", 1, 0)]).len(), 2);
        assert_eq!(layers(&[("..", 5, 0), (".", 1, 0), ("", 0, 0)]).len(), 2);
    }
}
