//! Tests jobs whose model is the document of a graph.

use millrace_emulator::families;
use millrace_params::{FlagOverrides, Params};
use serde_json::{Value, json};

use super::harness::TestDir;

/// Writes the graph of the family that `params.yaml` describes as `graph.json`, and params that name it as
/// `graph.yaml`. Returns these params.
fn place_with_document() -> (TestDir, Value) {
    let place = TestDir::new();
    let params = Params::parse_yaml(&std::fs::read_to_string(place.path("params.yaml")).unwrap()).unwrap();
    let job = params.resolve(&FlagOverrides::default()).unwrap().job;
    let graph = families::graph(&job.model, job.train_input.max_sequence_length).unwrap();
    place.write("graph.json", serde_json::to_vec(&graph).unwrap());
    let mut params = serde_json::to_value(&params).unwrap();
    params["model"] = json!({"graph": "graph.json", "vocab_size": 64});
    place.write("graph.yaml", params.to_string());
    (place, params)
}

/// Returns the file of an array of integers, all of which are `value`.
fn array(shape: [usize; 2], value: i32) -> Vec<u8> {
    let header = format!("{{'descr': '<i4', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1]);
    let length = (header.len() as u16).to_le_bytes();
    let values = value.to_le_bytes().repeat(shape[0] * shape[1]);
    [b"\x93NUMPY\x01\x00".as_slice(), &length, header.as_bytes(), &values].concat()
}

#[test]
fn document_gives_the_bits_of_the_family_that_it_describes() {
    let (place, _) = place_with_document();
    place.succeed("train -p params.yaml -o family --max_steps 3");
    for systems in [1, 2] {
        place.succeed(&format!("train -p graph.yaml -o graph{systems} --max_steps 3 --num_csx {systems}"));
        assert_eq!(place.result(&format!("graph{systems}"), 3), place.result("family", 3), "{systems}");
    }
    // The run continues, as that of a family does.
    place.succeed("train -p graph.yaml -o graph2 --max_steps 5");
    place.succeed("train -p params.yaml -o family --max_steps 5");
    assert_eq!(place.result("graph2", 5), place.result("family", 5));
}

#[test]
fn imported_weights_of_a_run_give_its_bits() {
    let (place, mut params) = place_with_document();
    params["runconfig"]["save_initial_checkpoint"] = json!(true);
    place.write("graph.yaml", params.to_string());
    place.succeed("train -p graph.yaml -o first --max_steps 3");
    place.succeed("checkpoint export first/checkpoint_0 --to safetensors initial.safetensors");
    place.succeed("checkpoint import initial.safetensors --from safetensors -p graph.yaml -o second");
    place.succeed("train -p graph.yaml -o second --max_steps 3");
    assert_eq!(place.result("second", 3), place.result("first", 3));
    // The second run imports the same weights again.
    for _ in 0..2 {
        place.succeed("train -p graph.yaml -o direct --checkpoint_path initial.safetensors --max_steps 3");
        assert_eq!(place.result("direct", 3), place.result("first", 3));
    }
    let changed = params["optimizer"].clone();
    place.write(
        "other.yaml",
        json!({"optimizer": changed, "model": {"graph": "other.json"}, "train_input":
        params["train_input"], "runconfig": params["runconfig"]})
        .to_string(),
    );
    let renamed = std::fs::read_to_string(place.path("graph.json")).unwrap().replace("wte", "table");
    place.write("other.json", renamed);
    for (command, part) in [
        ("checkpoint export first/checkpoint_3 --to safetensors initial.safetensors", "already exists"),
        ("checkpoint export first/checkpoint_3 --to safetensors new --tokenizer gpt2", "has no tokenizer"),
        ("train -p other.yaml -o third --checkpoint_path initial.safetensors", "initial.safetensors"),
        ("train -p graph.yaml -o third --checkpoint_path graph.json", "can't import graph.json"),
        ("checkpoint import graph.json --from safetensors -p graph.yaml -o third", "can't import graph.json"),
        ("checkpoint import gone --from safetensors -p graph.yaml -o third", "can't import gone: it is missing"),
        ("checkpoint import initial.safetensors --from safetensors --write_params new.yaml", "give the params"),
    ] {
        let output = place.run(command);
        assert_eq!(output.code(), 2, "{command}: {}", output.stderr);
        assert!(output.stderr.contains(part), "{} does not contain {part:?}", output.stderr);
    }
    assert!(!place.path("third").exists() && !place.path("new").exists() && !place.path("new.yaml").exists());
}

#[test]
fn document_states_reduction_and_frozen_tensors() {
    let (place, mut params) = place_with_document();
    params["runconfig"]["save_initial_checkpoint"] = json!(true);
    let document: Value = serde_json::from_slice(&std::fs::read(place.path("graph.json")).unwrap()).unwrap();
    let run = |name: &str, document: &Value, params: &Value| {
        place.write("graph.json", document.to_string());
        place.write("graph.yaml", params.to_string());
        place.succeed(&format!("train -p graph.yaml -o {name} --max_steps 2"));
    };
    let mut by_samples = document.clone();
    by_samples["reduction"] = json!("samples");
    run("document", &by_samples, &params);
    let mut scaled = params.clone();
    scaled["model"]["loss_scaling"] = json!("batch_size");
    run("params", &document, &scaled);
    assert_eq!(place.result("document", 2), place.result("params", 2));
    // The sum of the losses of a batch of 8 samples.
    let mut sum = document.clone();
    sum["reduction"] = json!("sum");
    run("sum", &sum, &params);
    scaled["model"]["loss_weight"] = params["train_input"]["batch_size"].clone();
    run("weighted", &document, &scaled);
    assert_eq!(place.result("sum", 2), place.result("weighted", 2));

    let mut frozen = document.clone();
    frozen["tensors"].as_array_mut().unwrap().iter_mut().for_each(|tensor| tensor["trained"] = json!(false));
    run("frozen", &frozen, &params);
    let mut fixed = params.clone();
    fixed["optimizer"]["params"] = json!([{"params": "*", "learning_rate_factor": 0, "weight_decay": 0}]);
    run("fixed", &document, &fixed);
    for name in ["frozen", "fixed"] {
        let parameters = |step: u32| place.info(&format!("{name}/checkpoint_{step}"))["parameters_blake3"].clone();
        assert_eq!(parameters(0), parameters(2), "{name}");
    }
    fixed["optimizer"]["params"][0]["params"] = json!("*.wieght");
    place.write("graph.yaml", fixed.to_string());
    let output = place.run("train -p graph.yaml -o bad");
    assert!(output.code() == 2 && output.stderr.contains("\"*.wieght\", which matches no tensor"), "{}", output.stderr);
}

#[test]
fn bad_documents_and_arrays_end_a_run_with_one_sentence() {
    let (place, params) = place_with_document();
    let document = std::fs::read_to_string(place.path("graph.json")).unwrap();
    let mut arrays = params.clone();
    arrays["train_input"] = json!({"data_processor": "ArrayDataProcessor", "data_dir": "arrays", "batch_size": 8});
    std::fs::create_dir(place.path("arrays")).unwrap();
    place.write("arrays/input_ids.npy", array([8, 3], 0));
    for (document, params, part) in [
        (&document[..90], &params, "model.graph graph.json is not the document of a graph"),
        (&document.replacen(r#""version":2"#, r#""version":9"#, 1), &params, "has version 9"),
        (&document, &arrays, "consist of input_ids i32 [3], but the model's graph reads input_ids i32 [16]"),
    ] {
        place.write("graph.json", document);
        place.write("bad.yaml", params.to_string());
        let output = place.run("train -p bad.yaml -o bad");
        assert_eq!(output.code(), 2, "{}", output.stderr);
        assert!(output.stderr.contains(part), "{} does not contain {part:?}", output.stderr);
    }
}

#[test]
fn label_beyond_the_classes_ends_the_run() {
    let (place, mut params) = place_with_document();
    params["train_input"] = json!({"data_processor": "ArrayDataProcessor", "data_dir": "arrays", "batch_size": 8});
    std::fs::create_dir(place.path("arrays")).unwrap();
    place.write("arrays/input_ids.npy", array([8, 16], 1));
    place.write("arrays/labels.npy", array([8, 16], 64));
    place.write("arrays.yaml", params.to_string());
    let ended = place.run("train -p arrays.yaml -o bad --max_steps 2 --num_csx 2");
    assert_eq!(ended.code(), 1, "{}\n{}", ended.stdout, ended.stderr);
    let says = "is 64 at position 0, but must be less than 64";
    assert!(ended.stderr.contains(says) && ended.stderr.contains("hint: compare"), "{}", ended.stderr);
    let journal = std::fs::read_to_string(place.path("bad/journal/attempt-1.jsonl")).unwrap();
    assert!(journal.contains("\"BadData\""), "{journal}");
}
