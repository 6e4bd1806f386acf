//! Checks that frames in the correct order with invalid content are rejected.

use std::sync::Arc;

use millrace_emulator::placement::{Placement, PlacementMembers};
use millrace_engine::frame::{Frame, FrameError, FrameKey};
use millrace_engine::message::ParameterSource;
use millrace_engine::payload::Payload;
use millrace_engine::payload_memory::HeapMemory;
use millrace_engine::shard::{Shard, ShardError};
use millrace_engine::swarm::{LinkError, Neighbour, SwarmX};
use millrace_engine::system::System;
use millrace_engine::types::{Epoch, Iteration, IterationKind};

use crate::model;
use crate::random::Random;

#[test]
fn rejects_payloads_of_the_wrong_size() {
    let mut plan = model::plan(&mut Random::new(3));
    (plan.leaves.count, plan.leaves_per_round) = (1, 1);
    let plan = Arc::new(plan);
    let (systems, swarmx, activation_servers) = (vec![0], vec![0], vec![0]);
    let members = PlacementMembers { systems, shards: 1, memoryx: vec![0], swarmx, fan_out: 2, activation_servers };
    let placement = Arc::new(Placement::new(&plan, &members).unwrap());
    let (epoch, node) = (Epoch { attempt: 1, number: 1 }, placement.tree.root());
    let iteration = Iteration { number: 0, task: IterationKind::Train { step: 1, batch: 0 } };
    let key = |chunk| FrameKey { epoch, iteration: 0, round: 0, slot: 0, chunk, node };

    let chunk = plan.up[0].chunk;
    let elements = plan.chunks[chunk].elements;
    let sum = |length| [Payload::Dense(vec![0; 4 * length].into()), Payload::from_sum(&vec![0.0; length], &HeapMemory)];
    let gather = |payload: Payload| {
        let frame = Frame::new(key(chunk), payload);
        let (mut swarm, mut shard) = (
            SwarmX::new(plan.clone(), placement.clone(), 0, epoch, 1, Arc::new(HeapMemory)),
            Shard::new(0, plan.clone()),
        );
        shard.on_loaded(&ParameterSource::Initial);
        shard.configure(placement.clone(), epoch, 1);
        swarm.open(iteration, &mut Vec::new()).unwrap();
        shard.open(epoch, iteration, &mut Vec::new()).unwrap();
        swarm.parent_grant(0, 1, &mut Vec::new()).unwrap();
        (swarm.gradient(0, frame.clone(), &mut Vec::new()), shard.gradient(frame, &mut Vec::new()))
    };
    for payload in sum(elements) {
        assert_eq!(gather(payload), (Ok(()), Ok(())));
    }
    let wrong = FrameError::Length { chunk, elements };
    for payload in sum(elements + 1).into_iter().chain([Payload::Dense(vec![0; 4 * elements + 1].into())]) {
        assert_eq!(
            gather(payload),
            (
                Err(LinkError { from: Neighbour::Child(0), source: wrong.clone() }),
                Err(ShardError::Frame(wrong.clone()))
            )
        );
    }

    let chunk = plan.down_train[0].chunk;
    let mut system = System::new(&plan, placement, 0, epoch, 1);
    system.open(iteration);
    system.weights(Frame::new(key(chunk), Payload::from_sum(&vec![0.0; plan.chunks[chunk].elements], &HeapMemory)));
    system.next().unwrap();
    assert_eq!(system.next().err(), Some(FrameError::SparseWeights { chunk }));
}
