//! Divides samples that are too long for the wafer into tiles: rows of the same number of tokens.
//!
//! The wafer works on one tile after another and keeps nothing from layer to layer. Values between layers, and their
//! gradients, are held by the system's activation server and cross the system's link tile by tile. The wafer holds
//!
//! * the weights of the current and of the next layer and all gradients of the current one: each tile uses them;
//! * all rows of what attention reads, because a row depends on earlier ones, and the gradients of these rows;
//! * everything else of one tile.
//!
//! Only the modelled machine works like this. The emulation computes whole samples, so tiles change no bit.

use std::collections::BTreeSet;

use super::activation_memory::LayerMemory;
use crate::graph::{Graph, OpNode, ValueId};
use crate::ops::RowDependency;

/// Minimum tokens of a tile. With fewer, products do not fill the wafer.
const MIN_TILE_TOKENS: usize = 256;

/// Elements of a layer's values per sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TiledLayer {
    /// Values that it reads from other layers.
    pub read: u64,
    /// Values that other layers read.
    pub written: u64,
    /// Values of which every tile needs all earlier rows.
    pub untiled: u64,
}

/// The layers of a graph whose samples can be divided into tiles.
pub struct SampleTiling {
    tokens: usize,
    input_bytes: u64,
    layers: Vec<TiledLayer>,
}

impl SampleTiling {
    /// Analyzes a valid graph. Returns `None` if a row of some value depends on later rows, or on constants.
    pub fn new(graph: &Graph) -> Option<Self> {
        let depends_on_later = |node: &OpNode| node.op.operator().row_dependency() == RowDependency::All;
        if !graph.constants.is_empty() || graph.nodes.iter().any(depends_on_later) {
            return None;
        }
        Some(Self { tokens: graph.sequence(), input_bytes: graph.input_bytes(), layers: tiled_layers(graph) })
    }

    /// Returns the layers, first to last.
    pub fn layers(&self) -> &[TiledLayer] {
        &self.layers
    }

    /// Returns the possible numbers of tiles, ascending.
    pub(super) fn possible_tiles(&self) -> impl Iterator<Item = u32> {
        let maximum = self.tokens / MIN_TILE_TOKENS;
        (1..u32::BITS).map(|shift| 1 << shift).take_while(move |&tiles| tiles as usize <= maximum)
    }

    /// Returns the memory of each layer if a sample is divided into `tiles`, of the memory of whole samples with
    /// `activation_bytes` per value.
    pub(super) fn memory(&self, layers: &[LayerMemory], activation_bytes: u64, tiles: u32) -> Vec<LayerMemory> {
        let of_layer = |(memory, tiled): (&LayerMemory, &TiledLayer)| {
            let (crossing, rows) = ((tiled.read + tiled.written) * activation_bytes, tiled.untiled * activation_bytes);
            let of_tile = |bytes: u64| bytes.div_ceil(u64::from(tiles));
            LayerMemory {
                saved: memory.saved,
                forward: rows + of_tile(memory.forward + crossing),
                backward: 2 * rows + of_tile(memory.backward + 2 * crossing),
                retained: self.input_bytes,
                retained_eval: self.input_bytes,
                working_eval: rows + of_tile(memory.working_eval + crossing),
            }
        };
        layers.iter().zip(&self.layers).map(of_layer).collect()
    }
}

impl TiledLayer {
    /// Returns whether a tile depends on rows of earlier ones, so that the backward pass computes these rows first.
    pub const fn attends(&self) -> bool {
        self.untiled > 0
    }
}

fn tiled_layers(graph: &Graph) -> Vec<TiledLayer> {
    let mut layers = vec![TiledLayer::default(); graph.layers.len()];
    let mut producers = vec![None; graph.values.len()];
    let mut is_written = vec![false; graph.values.len()];
    for (index, layer) in graph.layers.iter().enumerate() {
        let mut read = BTreeSet::new();
        for node in &graph.nodes[layer.nodes.clone()] {
            read.extend(
                node.inputs.iter().filter(|&&value| producers[value].is_some_and(|producer| producer != index)),
            );
            if node.op.operator().row_dependency() == RowDependency::Earlier {
                layers[index].untiled += node.inputs.iter().map(|&value| elements(graph, value)).sum::<u64>();
            }
            if let Some(output) = node.output {
                producers[output] = Some(index);
            }
        }
        for value in read {
            layers[index].read += elements(graph, value);
            if let (false, Some(producer)) = (std::mem::replace(&mut is_written[value], true), producers[value]) {
                layers[producer].written += elements(graph, value);
            }
        }
    }
    layers
}

fn elements(graph: &Graph, value: ValueId) -> u64 {
    graph.values[value].shape.elements()
}
