//! Writes the binary seeds of the corpus: `cargo run -p millrace-fuzz --example seeds`.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use millrace_emulator::plan::{Encoding, PlanHash};
use millrace_emulator::tree::Node;
use millrace_engine::frame::{Frame, FrameKey};
use millrace_engine::message::{AgentCommand, AgentReport, ParameterSource, ShardState, SnapshotRequest};
use millrace_engine::types::{AgentId, CommitRecord, Epoch, PreparedStep, Role, TrainingHistory};
use millrace_protocol::codec::{LinkContext, encode, pack};
use millrace_protocol::packet::Packet;
use millrace_protocol::proto::{self, ChunkPart};
use millrace_protocol::samples::Checked;
use prost::Message;

const EPOCH: Epoch = Epoch { attempt: 1, number: 2 };

fn frame(payload: &'static [u8], encoding: Encoding) -> Packet {
    let key = FrameKey { epoch: EPOCH, iteration: 3, round: 4, slot: 5, chunk: 6, node: Node::new(0, 2) };
    pack(Frame::new(key, Bytes::from_static(payload)), LinkContext { plan: PlanHash(9), encoding, step: 10 })
}

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let write = |target: &str, name: &str, bytes: &[u8]| fs::write(corpus.join(target).join(name), bytes);
    let whole = |packet: &Packet| [&packet.head[..], &packet.payload[..]].concat();
    let (f32, bf16) = (frame(&[0, 0, 128, 63, 0, 0, 0, 64], Encoding::F32), frame(&[128, 63], Encoding::Bf16));
    write("frame", "f32", &whole(&f32))?;
    write("frame", "bf16", &whole(&bf16))?;
    let mut sparse = whole(&f32);
    sparse[3] = 2;
    write("frame", "sparse", &sparse)?;
    write("packets", "two", &[&[7][..], &whole(&f32), &whole(&bf16)].concat())?;
    write("packets", "grants", &[&[3][..], &Packet::grant(3).head, &Packet::grant(5).head].concat())?;
    // Slot 0, filled once, 100 bytes; the checksum and the arena are those of the target.
    let slot = [[0, 0, 0, 0, 1, 0, 0, 0], 100u64.to_le_bytes()].concat();
    write("location", "first_slot", &[&[1; 16][..], &slot, &[0; 8]].concat())?;
    let parts = [(0, 8), (3, 12), (3, 4)].map(|(chunk, bytes)| {
        ChunkPart { chunk, elements: vec![1; bytes].into(), checksum: 0 }.sealed().encode_length_delimited_to_vec()
    });
    write("copy", "whole", &parts.concat())?;
    let history = TrainingHistory { skipped_batches: 2, steps: 3, mean_loss: 2.5, mean_norm: 1.5 };
    let record = CommitRecord { step: 3, scale: 1.0, learning_rate: 0.5, loss: 2.0, norm: 1.0, tokens: 32, history };
    let orders = [
        (
            "load",
            AgentCommand::Load(ParameterSource::Checkpoint {
                path: "m/checkpoint_2".to_owned(),
                optimizer: true,
                step: 2,
            }),
        ),
        (
            "load_replica",
            AgentCommand::Load(ParameterSource::Replica {
                agent: AgentId::new(Role::MemoryX, 2),
                address: "10.0.0.1:9000".to_owned(),
                step: 3,
                record: Some(record),
            }),
        ),
        ("commit", AgentCommand::Commit { record }),
        ("snapshot", AgentCommand::Snapshot(SnapshotRequest { step: 4, path: "m/checkpoint_4.partial".to_owned() })),
        ("finish", AgentCommand::Finish),
        ("weigh_losses", AgentCommand::WeighLosses { epoch: EPOCH, batch: 3, leaves: 1..4 }),
        ("scale_losses", AgentCommand::ScaleLosses { epoch: EPOCH, iteration: 2, factors: vec![0.5, f64::NAN] }),
    ];
    for (name, order) in &orders {
        write("control", name, &encode(order))?;
    }
    let state = ShardState {
        loaded: true,
        committed: 3,
        record: Some(record),
        prepared: Some(PreparedStep { step: 4, batch: 5 }),
    };
    let reports = [
        ("loaded", AgentReport::Loaded { state }),
        ("linked", AgentReport::Linked { epoch: EPOCH }),
        ("loss_weights", {
            AgentReport::LossWeights { epoch: EPOCH, batch: 3, first: 1, weights: vec![vec![2.5, f64::INFINITY]] }
        }),
        ("prepared", AgentReport::Prepared { epoch: EPOCH, step: 4, norms: vec![(0, 0.5), (1, f64::NAN)] }),
    ];
    for (name, report) in &reports {
        write("control", name, &encode(report))?;
    }
    for (kind, body) in [
        (
            "metric",
            r#"{"step":1,"loss":0.1,"learning_rate":0.0006,"grad_norm":1.5,"tokens":8,"seconds":0.5,"rate":2.0}"#,
        ),
        ("outcome", r#"{"exit_code":0,"reason":"Succeeded","message":"done","step":4}"#),
    ] {
        let entry = proto::Entry { number: 4, attempt: 2, time_ms: 17, kind: kind.to_owned(), body: body.to_owned() };
        write("entry", kind, &entry.encode_to_vec())?;
    }
    Ok(())
}
