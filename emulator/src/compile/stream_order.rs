//! Computes the order in which chunks are streamed.

use crate::graph::LayerId;
use crate::plan::{DownSlot, Group, GroupId, LayerPlan, Pass, UpSlot};

/// The three stream orders of a plan.
pub(super) struct StreamOrders {
    pub down_train: Vec<DownSlot>,
    pub down_eval: Vec<DownSlot>,
    pub up: Vec<UpSlot>,
}

impl StreamOrders {
    pub fn new(layers: &[LayerPlan], groups: &[Group], resident: &[GroupId]) -> Self {
        let mut streamed = vec![false; groups.len()];
        let mut slots = Vec::new();
        let mut stream = |pass: Pass, layer: LayerId, group: GroupId, slots: &mut Vec<DownSlot>| {
            // A resident group stays from its first use to the end of the round.
            if resident.contains(&group) && std::mem::replace(&mut streamed[group], true) {
                return;
            }
            slots.extend(groups[group].chunks.clone().map(|chunk| DownSlot { pass, layer, chunk }));
        };
        for (layer, plan) in layers.iter().enumerate() {
            plan.groups.iter().for_each(|&group| stream(Pass::Forward, layer, group, &mut slots));
        }
        let down_eval = slots.clone();
        for (layer, plan) in layers.iter().enumerate().rev() {
            plan.backward_groups.iter().for_each(|&group| stream(Pass::Backward, layer, group, &mut slots));
        }
        let up = layers.iter().enumerate().rev().flat_map(|(layer, plan)| {
            let chunks = plan.groups.iter().flat_map(|&group| groups[group].chunks.clone());
            chunks.map(move |chunk| UpSlot { layer, chunk })
        });
        Self { down_train: slots, down_eval, up: up.collect() }
    }
}
