//! Checks the files on disk, and that all data are read back bit by bit.

use safetensors::SafeTensors;

use crate::testing::{
    Model, adafactor_moments, adam_moments, bits, chunk_values, facts, graph, lock, plan, plan_of, section_values,
    sgd_moments, tensor_values, write,
};
use crate::{Checkpoint, Digest, LoadStrictness, Moments, PlanReader, Section};

#[test]
fn checkpoint_round_trips_with_documented_digests() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), adam_moments());
    let path = write(&lock(dir.path()), &plan, 7, &moments);
    assert_eq!(path, dir.path().join("checkpoint_7"));
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    let (mut parameters, mut optimizer) = (blake3::Hasher::new(), blake3::Hasher::new());
    for chunk in 0..plan.chunks.len() {
        for section in moments.sections() {
            let expected = chunk_values(&plan, chunk, section.index());
            let mut found = vec![0.0; expected.len()];
            checkpoint.read_chunk(chunk, section, &mut found).unwrap();
            assert_eq!(bits(&found), bits(&expected), "{section} of chunk {chunk}");
            let bytes: Vec<u8> = expected.iter().flat_map(|value| value.to_le_bytes()).collect();
            let hasher = if section == Section::Parameters { &mut parameters } else { &mut optimizer };
            hasher.update(blake3::hash(&bytes).as_bytes());
            assert_eq!(Digest::of_f32(&expected), Digest(*blake3::hash(&bytes).as_bytes()));
        }
    }
    let info = checkpoint.info();
    assert_eq!(info.parameters_blake3.to_string(), parameters.finalize().to_hex().as_str());
    assert_eq!(info.optimizer_blake3.to_string(), optimizer.finalize().to_hex().as_str());
    let json: serde_json::Value = serde_json::to_value(&info).unwrap();
    assert_eq!((json["step"].as_u64(), json["seed"].as_u64()), (Some(7), Some(u64::MAX)));
    assert_eq!(json["parameters_blake3"], info.parameters_blake3.to_string());
    assert_eq!(
        (info.loss, info.grad_norm, info.parameters),
        (Some(2.345_678), Some(f32::MIN_POSITIVE), plan.parameters())
    );
    assert_eq!(checkpoint.job(), facts(&plan).job);
    assert!(info.to_string().contains("optimizer_blake3"));
}

#[test]
fn every_file_is_safetensors_and_the_index_names_every_tensor() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), sgd_moments());
    let checkpoint = Checkpoint::open(write(&lock(dir.path()), &plan, 0, &moments)).unwrap();
    let read = |path: &str| std::fs::read(checkpoint.path().join(path)).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&read("model.safetensors.index.json")).unwrap();
    assert_eq!(index["metadata"]["total_size"], 4 * plan.parameters());
    for (id, tensor) in plan.graph.tensors.iter().enumerate() {
        let file = index["weight_map"][&tensor.name].as_str().unwrap();
        let moment = file.replace("parameters/", "optimizer/").replace(".safetensors", ".m.safetensors");
        for (section, file) in [file, &moment].into_iter().enumerate() {
            let bytes = read(file);
            let view = SafeTensors::deserialize(&bytes).unwrap();
            let found = view.tensor(&tensor.name).unwrap();
            assert_eq!(found.shape(), tensor.shape);
            let expected: Vec<u8> = tensor_values(&plan, id, section).iter().flat_map(|v| v.to_le_bytes()).collect();
            assert_eq!(found.data(), expected, "{} in {file}", tensor.name);
        }
    }
    let listed = checkpoint.files().unwrap();
    assert_eq!(listed.last().unwrap().path, "manifest.json");
    for file in &listed {
        assert_eq!(read(&file.path).len() as u64, file.bytes, "{}", file.path);
    }
    assert_eq!(listed.len(), 4 + 2 * plan.groups.len());
}

#[test]
fn checkpoint_is_readable_by_any_plan_of_the_model() {
    let (dir, written) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &written, 3, &sgd_moments());
    let mut reversed = graph(Model::default());
    // Another order of tensors; operators are irrelevant for reading.
    reversed.tensors.reverse();
    for (groups, max_elements) in [(1, 1 << 20), (4, 100), (7, 33), (50, 8)] {
        let plan = plan_of(reversed.clone(), groups, max_elements);
        let mut reader =
            PlanReader::new(Checkpoint::open(&path).unwrap(), &plan, &adam_moments(), LoadStrictness::Strict).unwrap();
        assert_eq!(reader.missing_moments(), ["v"]);
        for chunk in 0..plan.chunks.len() {
            let mut out = vec![1.0; plan.chunks[chunk].elements];
            for section in [Section::Parameters, Section::Moment(0)] {
                reader.read_chunk(chunk, section, &mut out).unwrap();
                assert_eq!(
                    bits(&out),
                    bits(&chunk_values(&plan, chunk, section.index())),
                    "{groups} groups, {section}"
                );
            }
            reader.read_chunk(chunk, Section::Moment(1), &mut out).unwrap();
            assert!(out.iter().all(|value| value.to_bits() == 0));
        }
    }
}

/// State of rows and columns is as small on disk as it is in memory, has files of its own, and is read by any plan.
#[test]
fn state_of_rows_and_columns_round_trips() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), adafactor_moments());
    let path = write(&lock(dir.path()), &plan, 3, &moments);
    let checkpoint = Checkpoint::open_verified(&path).unwrap();
    assert_eq!((checkpoint.moments(), checkpoint.info().format), (&moments, 2));
    let file = std::fs::read_dir(path.join("optimizer")).unwrap().map(|file| file.unwrap().path());
    let mut rows: Vec<_> = file.filter(|file| file.to_string_lossy().ends_with(".v_row.safetensors")).collect();
    rows.sort();
    let bytes = std::fs::read(&rows[0]).unwrap();
    let view = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(view.tensor("wte.weight").unwrap().shape(), [11]);

    for (groups, max_elements) in [(1, 1 << 20), (4, 100), (7, 33), (50, 8)] {
        let plan = plan_of(graph(Model::default()), groups, max_elements);
        let open = || Checkpoint::open(&path).unwrap();
        let mut reader = PlanReader::new(open(), &plan, &moments, LoadStrictness::Strict).unwrap();
        for (chunk, section) in
            (0..plan.chunks.len()).flat_map(|chunk| moments.sections().map(move |section| (chunk, section)))
        {
            let expected = section_values(&plan, &moments, chunk, section);
            let mut out = vec![1.0; expected.len()];
            reader.read_chunk(chunk, section, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&expected), "{groups} groups, {section} of chunk {chunk}");
        }
        // A moment of the same name and another shape is another moment.
        let full = Moments::new(["v_row", "m"]).unwrap();
        let reader = PlanReader::new(open(), &plan, &full, LoadStrictness::Strict).unwrap();
        assert_eq!(reader.missing_moments(), ["v_row"]);
    }

    let mut damaged = bytes.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    std::fs::write(&rows[0], damaged).unwrap();
    let found = crate::verify(&path, |_| ()).unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].tensors.contains(&"wte.weight".to_owned()), "{:?}", found[0]);
}

#[test]
fn another_model_is_refused_by_its_first_difference() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &plan, 3, &Moments::none());
    let changed = |change: fn(&mut Model)| {
        let mut model = Model::default();
        change(&mut model);
        graph(model)
    };
    let untied = changed(|model| model.tied = false);
    let cases = [
        (untied, "it has no tensor lm_head.weight"),
        (
            changed(|model| model.vocabulary = 12),
            "wte.weight has shape [11, 8] in the checkpoint and [12, 8] in the params",
        ),
        (
            changed(|model| model.bias = false),
            "it has a tensor h.0.attn.qkv.bias that the model of the params does not have",
        ),
    ];
    for (graph, expected) in cases {
        let other = plan_of(graph, 4, 100);
        let error = PlanReader::new(Checkpoint::open(&path).unwrap(), &other, &Moments::none(), LoadStrictness::Strict)
            .unwrap_err();
        assert!(error.to_string().ends_with(expected), "{error}");
        assert!(error.is_bad_input() && error.hint().is_some());
    }
}

#[test]
fn partial_load_reports_missing_tensors() {
    let (dir, written) = (tempfile::tempdir().unwrap(), plan());
    let path = write(&lock(dir.path()), &written, 3, &sgd_moments());
    let plan = plan_of(graph(Model { tied: false, vocabulary: 12, bias: false, ..Model::default() }), 3, 64);
    let mut reader =
        PlanReader::new(Checkpoint::open(&path).unwrap(), &plan, &sgd_moments(), LoadStrictness::AllowMissing).unwrap();
    assert_eq!(reader.missing_tensors(), ["wte.weight", "lm_head.weight"]);
    for chunk in 0..plan.chunks.len() {
        for (section, filler) in [(Section::Parameters, 9.0), (Section::Moment(0), 0.0)] {
            let mut expected = chunk_values(&plan, chunk, section.index());
            for (tensor, _, range) in plan.chunk_pieces(chunk) {
                if plan.graph.tensors[tensor].shape[0] == 12 {
                    expected[range].fill(filler);
                }
            }
            let mut out = vec![9.0; expected.len()];
            reader.read_chunk(chunk, section, &mut out).unwrap();
            assert_eq!(bits(&out), bits(&expected), "{section} of chunk {chunk}");
        }
    }
}
