//! Builds a schedule by one forward and one backward traversal of the graph.

use super::{
    BackwardStep, ForwardStep, GradientTarget, InputSource, Liveness, PassSchedule, Step, StorageId, StorageKind,
    StorageSlot,
};
use crate::graph::{Graph, LayerId, NodeId, ValueId};
use crate::ops::{GradientForm, Operator, Signature};

/// Purpose of a forward traversal; decides what is kept after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ForwardPurpose {
    /// The forward pass of training; everything the backward pass needs is saved.
    Saving,
    /// The forward pass of training of a recomputed layer.
    Discarding,
    /// The forward steps repeated in a backward pass.
    Repeating,
    /// The forward pass of an evaluation.
    Evaluating,
}

pub(super) struct ScheduleBuilder<'a> {
    graph: &'a Graph,
    liveness: Liveness,
    /// Source of each value that no operator computes.
    sources: Vec<Option<InputSource>>,
    storage: Vec<StorageSlot>,
    /// Current storage of each value.
    stored_at: Vec<Option<StorageId>>,
    /// Current storage of the extra numbers of each node.
    extra: Vec<Option<StorageId>>,
    /// Storage of each value's gradient, from its first contribution to the backward step of its producer.
    gradient: Vec<Option<StorageId>>,
    /// Number of gradients that share each storage slot.
    shares: Vec<u32>,
    pass: usize,
    steps: Vec<Step>,
}

impl<'a> ScheduleBuilder<'a> {
    pub fn new(graph: &'a Graph) -> Self {
        let mut sources = vec![None; graph.values.len()];
        let inputs = graph.inputs.iter().enumerate().map(|(index, &value)| (value, InputSource::Sample(index)));
        let constants = graph.constants.iter().enumerate();
        let constants = constants.map(|(index, constant)| (constant.value, InputSource::Constant(index)));
        inputs.chain(constants).for_each(|(value, source)| sources[value] = Some(source));
        Self {
            graph,
            sources,
            liveness: Liveness::new(graph),
            storage: Vec::new(),
            stored_at: vec![None; graph.values.len()],
            extra: vec![None; graph.nodes.len()],
            gradient: vec![None; graph.values.len()],
            shares: Vec::new(),
            pass: 0,
            steps: Vec::new(),
        }
    }

    pub fn training(mut self, recompute: &[bool]) -> PassSchedule {
        let mut forward = Vec::with_capacity(recompute.len());
        for (layer, &recompute) in recompute.iter().enumerate() {
            let walk = if recompute { ForwardPurpose::Discarding } else { ForwardPurpose::Saving };
            self.forward(layer, self.graph.layers[layer].nodes.clone(), walk);
            forward.push(self.end_pass());
        }
        let mut backward = Vec::with_capacity(recompute.len());
        for (layer, &recompute) in recompute.iter().enumerate().rev() {
            if recompute {
                let repeated = self.liveness.repeated(self.graph, layer);
                self.forward(layer, repeated.into_iter(), ForwardPurpose::Repeating);
            }
            for node in self.graph.layers[layer].nodes.clone().rev() {
                self.backward(node);
            }
            backward.push(self.end_pass());
        }
        backward.reverse();
        PassSchedule { forward, backward, storage: self.storage }
    }

    pub fn evaluation(mut self) -> PassSchedule {
        let layers = 0..self.graph.layers.len();
        let forward = layers.map(|layer| {
            self.forward(layer, self.graph.layers[layer].nodes.clone(), ForwardPurpose::Evaluating);
            self.end_pass()
        });
        let forward = forward.collect();
        PassSchedule { forward, backward: Vec::new(), storage: self.storage }
    }

    fn end_pass(&mut self) -> Vec<Step> {
        self.pass += 1;
        std::mem::take(&mut self.steps)
    }

    /// Adds the forward steps of `nodes`, which belong to one layer.
    fn forward(&mut self, layer: LayerId, nodes: impl Iterator<Item = NodeId>, walk: ForwardPurpose) {
        let nodes: Vec<NodeId> = nodes.collect();
        let needed = if walk == ForwardPurpose::Evaluating {
            Vec::new()
        } else {
            self.liveness.needed_backward(self.graph, layer)
        };
        for &id in &nodes {
            let (graph, node) = (self.graph, &self.graph.nodes[id]);
            let (operator, signature) = (node.op.operator(), Signature::of(graph, node));
            let overwritten = operator.in_place_inputs().iter().copied().find(|&input_index| {
                let input = node.inputs[input_index];
                let read_later = || {
                    self.liveness
                        .readers(input)
                        .iter()
                        .any(|&reader| reader > id && nodes.binary_search(&reader).is_ok())
                };
                let is_kept = match walk {
                    ForwardPurpose::Saving => self.liveness.crosses(input) || needed.binary_search(&input).is_ok(),
                    ForwardPurpose::Discarding | ForwardPurpose::Evaluating => self.liveness.crosses(input),
                    ForwardPurpose::Repeating => needed.binary_search(&input).is_ok(),
                };
                let is_repeated = node.inputs.iter().filter(|&&other| other == input).count() > 1;
                self.liveness.defining_layer(input) == Some(layer) && !is_kept && !is_repeated && !read_later()
            });
            let inputs = (0..node.inputs.len())
                .map(|input_index| {
                    if overwritten == Some(input_index) {
                        InputSource::Overwritten
                    } else {
                        self.source(node.inputs[input_index])
                    }
                })
                .collect();
            let output = node.output.map(|value| {
                match overwritten.and_then(|input_index| self.stored_at[node.inputs[input_index]]) {
                    Some(stored_at) => stored_at,
                    None => self.allocate(self.elements(value)),
                }
            });
            if let Some(value) = node.output {
                self.stored_at[value] = output;
            }
            let extra = self.allocate_some(StorageKind::Scratch, operator.saved(&signature).floats);
            self.extra[id] = extra;
            let scratch = self.allocate_some(StorageKind::Values, operator.scratch(&signature));
            self.push(Step::Forward(ForwardStep { node: id, inputs, output, extra, scratch }));
        }
    }

    /// Adds the backward steps of one node.
    fn backward(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let operator = node.op.operator();
        let gradient = node.output.and_then(|value| self.gradient[value].take());
        if node.output.is_some() && gradient.is_none() {
            if !node.params.is_empty() {
                self.push(Step::Unreached(id));
            }
            return;
        }
        // The gradient of the output is overwritten at the end, and only if no other gradient shares its storage.
        let form = |(index, &input)| {
            if self.liveness.depends_on_tensor(input) { operator.gradient(index) } else { GradientForm::None }
        };
        let forms: Vec<GradientForm> = node.inputs.iter().enumerate().map(form).collect();
        let gradient = match gradient {
            Some(shared) if forms.contains(&GradientForm::Overwrite) => Some(self.make_exclusive(shared)),
            other => other,
        };
        let mut contributions = Vec::new();
        let mut targets = Vec::with_capacity(forms.len());
        for (&input, &form) in node.inputs.iter().zip(&forms) {
            let target = match self.replaceable(id, input, form) {
                Some(stored_at) => {
                    contributions.push((input, stored_at));
                    GradientTarget::Replace(stored_at)
                }
                None => self.target(input, form, gradient, &mut contributions),
            };
            targets.push(target);
        }
        if !node.params.is_empty() || targets.iter().any(|target| *target != GradientTarget::None) {
            self.backward_step(id, operator, gradient, targets);
        }
        for (input, gradient_storage) in contributions {
            self.contribute(input, gradient_storage);
        }
        if let Some(gradient) = gradient {
            self.shares[gradient] -= 1;
        }
    }

    /// Returns the storage of `input` if the first contribution to its gradient may overwrite it: the operator `id`
    /// allows it, and no later backward step reads the input.
    fn replaceable(&self, id: NodeId, input: ValueId, form: GradientForm) -> Option<StorageId> {
        let node = &self.graph.nodes[id];
        let allowed = form == GradientForm::StoreOrAdd && node.op.operator().gradient_replaces_input();
        if !allowed || self.gradient[input].is_some() || self.liveness.readers(input).first() != Some(&id) {
            return None;
        }
        // The backward step of its producer comes later: in this layer or, if it belongs to an earlier layer, in
        // another pass.
        let maker = &self.graph.nodes[self.liveness.producer(input)?];
        let saved = maker.op.operator().saved(&Signature::of(self.graph, maker));
        if saved.output || self.liveness.defining_layer(input) != self.liveness.layer_of(id) {
            None
        } else {
            self.stored_at[input]
        }
    }

    /// Decides where a step writes the gradient of `input`. Contributions that need a step of their own are appended to
    /// `contributions`.
    fn target(
        &mut self,
        input: ValueId,
        form: GradientForm,
        gradient: Option<StorageId>,
        contributions: &mut Vec<(ValueId, StorageId)>,
    ) -> GradientTarget {
        match (form, gradient) {
            (GradientForm::None, _) => GradientTarget::None,
            (GradientForm::Same, Some(gradient)) => {
                contributions.push((input, gradient));
                GradientTarget::None
            }
            (GradientForm::Overwrite, Some(gradient)) => {
                contributions.push((input, gradient));
                GradientTarget::Overwrite
            }
            (GradientForm::StoreOrAdd, _) if self.gradient[input].is_some() => {
                let exclusive = self.gradient[input].take().map(|shared| self.make_exclusive(shared));
                self.gradient[input] = exclusive;
                exclusive.map_or(GradientTarget::None, GradientTarget::Add)
            }
            // A gradient that equals another one, or overwrites it, is not stored.
            _ => {
                let storage = self.allocate(self.elements(input));
                contributions.push((input, storage));
                GradientTarget::Store(storage)
            }
        }
    }

    fn backward_step(
        &mut self,
        id: NodeId,
        operator: &dyn Operator,
        gradient: Option<StorageId>,
        targets: Vec<GradientTarget>,
    ) {
        let node = &self.graph.nodes[id];
        let signature = Signature::of(self.graph, node);
        let saved = operator.saved(&signature);
        let input = |index: usize| {
            if saved.inputs.contains(&index) { self.source(node.inputs[index]) } else { InputSource::Absent }
        };
        let inputs = (0..node.inputs.len()).map(input).collect();
        let output = node.output.filter(|_| saved.output).and_then(|value| self.stored_at[value]);
        let extra = self.extra[id];
        let scratch = self.allocate_some(StorageKind::Values, operator.scratch(&signature));
        self.push(Step::Backward(BackwardStep { node: id, inputs, output, extra, scratch, gradient, targets }));
    }

    /// Adds the gradient in `storage` to the gradient of `input`.
    fn contribute(&mut self, input: ValueId, storage: StorageId) {
        match self.gradient[input].take() {
            None => {
                self.shares[storage] += 1;
                self.gradient[input] = Some(storage);
            }
            Some(shared) => {
                let exclusive = self.make_exclusive(shared);
                self.push(Step::Add { from: storage, to: exclusive });
                self.gradient[input] = Some(exclusive);
            }
        }
    }

    /// Returns storage that holds the gradient in `shared` exclusively: `shared` itself, or a copy.
    fn make_exclusive(&mut self, shared: StorageId) -> StorageId {
        if self.shares[shared] <= 1 {
            return shared;
        }
        self.shares[shared] -= 1;
        let copy = self.allocate(self.storage[shared].elements);
        self.shares[copy] = 1;
        self.push(Step::Copy { from: shared, to: copy });
        copy
    }

    fn source(&self, value: ValueId) -> InputSource {
        let computed = || self.stored_at[value].map(InputSource::Stored);
        self.sources[value].or_else(computed).unwrap_or(InputSource::Absent)
    }

    fn elements(&self, value: ValueId) -> u64 {
        self.graph.values[value].shape.elements()
    }

    fn allocate(&mut self, elements: u64) -> StorageId {
        self.allocate_kind(StorageKind::Values, elements)
    }

    fn allocate_kind(&mut self, kind: StorageKind, elements: u64) -> StorageId {
        let (pass, step) = (self.pass, self.steps.len());
        self.storage.push(StorageSlot { kind, elements, passes: (pass, pass), steps: (step, step) });
        self.shares.push(0);
        self.storage.len() - 1
    }

    fn allocate_some(&mut self, kind: StorageKind, elements: u64) -> Option<StorageId> {
        (elements > 0).then(|| self.allocate_kind(kind, elements))
    }

    /// Appends a step and extends the lifetime of all storage it touches to it.
    fn push(&mut self, step: Step) {
        let (pass, step_index) = (self.pass, self.steps.len());
        let storage = &mut self.storage;
        let mut touch = |id: StorageId| {
            storage[id].passes.1 = pass;
            storage[id].steps.1 = step_index;
        };
        let mut read = |sources: &[InputSource], others: [Option<StorageId>; 4]| {
            let stored = sources.iter().filter_map(|source| match source {
                InputSource::Stored(id) => Some(*id),
                _ => None,
            });
            stored.chain(others.into_iter().flatten()).for_each(&mut touch);
        };
        match &step {
            Step::Forward(step) => read(&step.inputs, [step.output, step.extra, step.scratch, None]),
            Step::Backward(step) => {
                read(&step.inputs, [step.output, step.extra, step.scratch, step.gradient]);
                for target in &step.targets {
                    if let GradientTarget::Store(id) | GradientTarget::Add(id) | GradientTarget::Replace(id) = target {
                        touch(*id);
                    }
                }
            }
            Step::Unreached(_) => {}
            Step::Copy { from, to } | Step::Add { from, to } => read(&[], [Some(*from), Some(*to), None, None]),
        }
        self.steps.push(step);
    }
}
