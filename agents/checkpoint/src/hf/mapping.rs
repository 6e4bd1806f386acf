//! The tensors of a model family of `transformers`, each as rows of a tensor of the graph.
//!
//! ```text
//! transformers                 graph
//! zeros, `padding` rows        -
//! row r                        row `first + r`, or that of the same head; times a factor if it computes queries;
//!                              minus `shift`
//! ```

use millrace_emulator::graph::TensorId;

use super::structure::{Decoder, Encoder, NamedTensors, Seq2Seq, VisionTransformer};

/// A tensor of `transformers` and its rows in a tensor of the graph.
#[derive(Clone, Debug)]
pub(super) struct MappedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// The graph's tensor; `None` for one that the graph does not have: a constant, or zeros.
    pub tensor: Option<TensorId>,
    constant: Option<Vec<f32>>,
    /// Row of the graph's tensor that is the first row.
    first: usize,
    order: RowOrder,
    /// Number of rows at the start of the graph's tensor that compute queries, and the factor by which exported ones
    /// are larger.
    queries: (usize, f32),
    /// Number of rows at its start that the graph's tensor does not have.
    padding: usize,
    /// What is added to its values to get those of the graph.
    shift: f32,
}

/// Order of the rows of queries, keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RowOrder {
    /// That of the graph: all queries, all keys, all values.
    Same,
    /// For each head of keys its queries, its keys and its values.
    ByKeyHead { group: usize, key_heads: usize, head_dim: usize },
}

impl MappedTensor {
    /// Returns a tensor whose rows are those of `tensor` from `first` on.
    fn new(name: String, shape: Vec<usize>, tensor: Option<TensorId>, first: usize) -> Self {
        let (order, queries) = (RowOrder::Same, (0, 1.0));
        Self { name, shape, tensor, constant: None, first, order, queries, padding: 0, shift: 0.0 }
    }

    /// Returns the graph's row for a row of `transformers` that is not padding.
    fn graph_row(&self, row: usize) -> usize {
        match self.order {
            RowOrder::Same => self.first + row - self.padding,
            RowOrder::ByKeyHead { group, key_heads, head_dim } => {
                let (head, element) = (row / head_dim, row % head_dim);
                let (key_head, part) = (head / (group + 2), head % (group + 2));
                let head = match part.checked_sub(group) {
                    None => key_head * group + part,
                    Some(kind) => group * key_heads + kind * key_heads + key_head,
                };
                head * head_dim + element
            }
        }
    }

    fn factor(&self, graph_row: usize) -> f32 {
        if graph_row < self.queries.0 { self.queries.1 } else { 1.0 }
    }

    /// Returns the number of elements of a row, of all dimensions but the first.
    fn columns(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Returns the values of a tensor that the graph does not have.
    pub fn own_values(&self) -> Vec<f32> {
        self.constant.clone().unwrap_or_else(|| vec![0.0; self.shape.iter().product()])
    }

    /// Returns the values for `transformers` from those of the graph's tensor.
    pub fn export(&self, values: &[f32]) -> Vec<f32> {
        let columns = self.columns();
        let mut exported = Vec::with_capacity(self.shape.iter().product());
        exported.resize(self.padding * columns, 0.0);
        for row in self.padding..self.shape.first().copied().unwrap_or(0) {
            let row = self.graph_row(row);
            let factor = self.factor(row);
            exported.extend(values[row * columns..][..columns].iter().map(|value| value * factor - self.shift));
        }
        exported
    }

    /// Writes the values of `transformers` to their rows in `target`, the values of the graph's tensor.
    pub fn import(&self, hf_values: &[f32], target: &mut [f32]) {
        let columns = self.columns();
        for (row, values) in hf_values.chunks_exact(columns).enumerate().skip(self.padding) {
            let row = self.graph_row(row);
            let factor = self.factor(row);
            let target = target[row * columns..][..columns].iter_mut();
            target.zip(values).for_each(|(target, value)| *target = (value + self.shift) / factor);
        }
    }
}

/// The rows of queries, keys and values in `attn.qkv`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AttentionRows {
    heads: usize,
    key_heads: usize,
    head_dim: usize,
    /// The factor on queries if attention scales as the family does.
    query_factor: f32,
}

impl AttentionRows {
    /// Returns the rows of an attention that scales query-key products by `scale`, where the family scales by
    /// `1 / sqrt(divisor)`.
    fn new(heads: usize, key_heads: usize, head_dim: usize, scale: f32, divisor: f64) -> Self {
        let factor = f64::from(scale) * divisor.sqrt();
        // The scale itself is only an f32.
        let query_factor = if (factor - 1.0).abs() > 1e-6 { factor as f32 } else { 1.0 };
        Self { heads, key_heads, head_dim, query_factor }
    }

    /// Returns the parts of all rows: start and number of queries, keys and values.
    fn parts(self) -> [(usize, usize); 3] {
        let (queries, keys) = (self.heads * self.head_dim, self.key_heads * self.head_dim);
        [(0, queries), (queries, keys), (queries + keys, keys)]
    }
}

/// Builds the list of a family's tensors.
pub(super) struct Tensors<'a> {
    named: &'a NamedTensors,
    attention: AttentionRows,
    pub all: Vec<MappedTensor>,
}

impl<'a> Tensors<'a> {
    fn new(named: &'a NamedTensors, attention: AttentionRows) -> Self {
        Self { named, attention, all: Vec::new() }
    }

    /// Begins the list of a decoder that scales query-key products by `1 / sqrt(head_dim)`.
    pub fn of_decoder(decoder: &'a Decoder) -> Self {
        Self::of_decoder_scaled(decoder, decoder.head_dim as f64)
    }

    /// Begins the list of a decoder that scales query-key products by `1 / sqrt(divisor)`.
    pub fn of_decoder_scaled(decoder: &'a Decoder, divisor: f64) -> Self {
        let block = &decoder.block;
        let rows = AttentionRows::new(block.heads, block.key_heads, decoder.head_dim, block.scale, divisor);
        Self::new(&decoder.tensors, rows)
    }

    /// Begins the list of an encoder.
    pub fn of_encoder(encoder: &'a Encoder) -> Self {
        let (heads, head_dim) = (encoder.heads, encoder.hidden / encoder.heads);
        Self::new(&encoder.tensors, AttentionRows::new(heads, heads, head_dim, encoder.scale, head_dim as f64))
    }

    /// Begins the list of a vision transformer.
    pub fn of_vision_transformer(model: &'a VisionTransformer) -> Self {
        let (heads, head_dim) = (model.heads, model.hidden / model.heads);
        Self::new(&model.tensors, AttentionRows::new(heads, heads, head_dim, model.scale, head_dim as f64))
    }

    /// Begins the list of an encoder and a decoder, which do not scale query-key products.
    pub fn of_seq2seq(model: &'a Seq2Seq) -> Self {
        let heads = model.block.heads;
        let head_dim = model.attention_width / heads.max(1);
        Self::new(&model.tensors, AttentionRows::new(heads, heads, head_dim, model.block.scale, 1.0))
    }

    /// Returns whether the graph has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.named.has(name)
    }

    /// Adds the weight, and the bias if the graph has one.
    pub fn layer(&mut self, hf_name: &str, name: &str) {
        self.rows(hf_name, name, "weight", None, RowOrder::Same);
        self.rows(hf_name, name, "bias", None, RowOrder::Same);
    }

    /// Adds the weight and a bias, of zeros if the graph has none.
    pub fn biased_layer(&mut self, hf_name: &str, name: &str) {
        self.layer(hf_name, name);
        self.zero_bias(hf_name, name, None);
    }

    /// Adds queries, keys and values as one layer in the order of key heads.
    pub fn by_key_head(&mut self, hf_name: &str, name: &str, is_biased: bool) {
        let AttentionRows { heads, key_heads, head_dim, .. } = self.attention;
        let order = RowOrder::ByKeyHead { group: heads / key_heads.max(1), key_heads, head_dim };
        self.rows(hf_name, name, "weight", None, order);
        self.rows(hf_name, name, "bias", None, order);
        if is_biased {
            self.zero_bias(hf_name, name, None);
        }
    }

    /// Adds queries, keys and values as layers of their own.
    pub fn split(&mut self, hf_name: &[String; 3], name: &str) {
        for (hf_name, rows) in hf_name.iter().zip(self.attention.parts()) {
            self.rows(hf_name, name, "weight", Some(rows), RowOrder::Same);
            self.rows(hf_name, name, "bias", Some(rows), RowOrder::Same);
        }
    }

    /// Adds queries, keys and values as layers of their own, with biases of zeros if the graph has none.
    pub fn biased_split(&mut self, hf_name: &[String; 3], name: &str) {
        self.split(hf_name, name);
        for (hf_name, (_, count)) in hf_name.iter().zip(self.attention.parts()) {
            self.zero_bias(hf_name, name, Some(count));
        }
    }

    /// Adds keys and values, which are one layer of the graph, as two.
    pub fn split_keys(&mut self, hf_name: [&str; 2], name: &str) {
        let count = self.attention.key_heads * self.attention.head_dim;
        for (hf_name, first) in hf_name.into_iter().zip([0, count]) {
            self.rows(hf_name, name, "weight", Some((first, count)), RowOrder::Same);
        }
    }

    /// Adds a table after `padding` rows that the graph does not have.
    pub fn padded_table(&mut self, hf_name: &str, name: &str, padding: usize) {
        let before = self.all.len();
        self.rows(hf_name, name, "weight", None, RowOrder::Same);
        for mapped in &mut self.all[before..] {
            mapped.padding = padding;
            mapped.shape[0] = mapped.shape[0].saturating_add(padding);
        }
    }

    /// Adds the gain of a norm from which `transformers` subtracts 1.
    pub fn shifted_gain(&mut self, hf_name: &str, name: &str) {
        let before = self.all.len();
        self.layer(hf_name, name);
        self.all[before..].iter_mut().for_each(|mapped| mapped.shift = 1.0);
    }

    /// Adds the graph's tensor `name` as `hf_name`, with a shape of as many elements.
    pub fn reshaped(&mut self, hf_name: &str, name: &str, shape: &[usize]) {
        if let Some((id, _)) = self.named.get(name) {
            self.all.push(MappedTensor::new(hf_name.into(), shape.to_vec(), Some(id), 0));
        }
    }

    /// Adds a tensor of zeros that the graph does not have.
    pub fn zeros(&mut self, hf_name: &str, shape: &[usize]) {
        self.all.push(MappedTensor::new(hf_name.into(), shape.to_vec(), None, 0));
    }

    /// Adds a vector that is not trained, and that the graph's operators compute.
    pub fn constant(&mut self, hf_name: &str, values: Vec<f32>) {
        let mapped = MappedTensor::new(hf_name.into(), vec![values.len()], None, 0);
        self.all.push(MappedTensor { constant: Some(values), ..mapped });
    }

    /// Adds the output layer, unless it is the token embedding.
    pub fn head(&mut self, hf_name: &str) {
        if !self.named.are_same("lm_head.weight", "wte.weight") {
            self.layer(hf_name, "lm_head");
        }
    }

    fn zero_bias(&mut self, hf_name: &str, name: &str, count: Option<usize>) {
        let rows = self.named.get(&format!("{name}.weight")).and_then(|(_, shape)| shape.first().copied());
        if let (Some(rows), false) = (rows, self.named.has(&format!("{name}.bias"))) {
            self.zeros(&format!("{hf_name}.bias"), &[count.unwrap_or(rows)]);
        }
    }

    fn rows(&mut self, hf_name: &str, name: &str, kind: &str, rows: Option<(usize, usize)>, order: RowOrder) {
        let Some((id, shape)) = self.named.get(&format!("{name}.{kind}")) else { return };
        let mut shape = shape.to_vec();
        let (first, count) = rows.unwrap_or((0, shape[0]));
        shape[0] = count;
        let AttentionRows { heads, head_dim, query_factor, .. } = self.attention;
        let computes_queries = [".attn.qkv", ".attn.q", ".cross.q"].iter().any(|end| name.ends_with(end));
        let queries = if computes_queries { (heads * head_dim, query_factor) } else { (0, 1.0) };
        let mapped = MappedTensor::new(format!("{hf_name}.{kind}"), shape, Some(id), first);
        self.all.push(MappedTensor { order, queries, ..mapped });
    }
}
