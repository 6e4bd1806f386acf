//! Tests of jobs whose loss has a divisor of its own, the sum of a weight over the batch.

use millrace_emulator::families;
use millrace_params::{FlagOverrides, Params};
use serde_json::{Value, json};

use super::harness::{RunResult, TestDir};
use super::job::Job;

/// Creates a directory with params whose model is the family of `family.yaml`, with a loss that is divided by the
/// number of labels of at least `least`.
fn place(least: i32, changes: &[(&str, &str)]) -> TestDir {
    let place = TestDir::new();
    place.params("family.yaml", changes);
    let params = Params::parse_yaml(&std::fs::read_to_string(place.path("family.yaml")).unwrap()).unwrap();
    let job = params.resolve(&FlagOverrides::default()).unwrap().job;
    let graph = families::graph(&job.model, job.train_input.max_sequence_length).unwrap();
    let mut document = serde_json::to_value(&graph).unwrap();
    add_weight(&mut document, least);
    place.write("graph.json", document.to_string());
    let mut params = serde_json::to_value(&params).unwrap();
    params["model"] = json!({"graph": "graph.json", "vocab_size": job.model.vocab_size});
    place.write("params.yaml", params.to_string());
    place
}

fn add_weight(document: &mut Value, least: i32) {
    let values = document["values"].as_array_mut().unwrap();
    let labels = values.iter().position(|value| value["name"] == "labels").unwrap();
    let (first, shape) = (values.len(), values[labels]["shape"].clone());
    for (name, dtype, shape) in [
        ("least", "i32", json!([])),
        ("counts", "bool", shape.clone()),
        ("counted", "f32", shape),
        ("count", "f32", json!([])),
    ] {
        values.push(json!({"name": name, "dtype": dtype, "shape": shape}));
    }
    let data = ["AAAAAA==", "CAAAAA=="][usize::from(least == 8)];
    document["constants"] = json!([{"value": first, "data": data}]);
    let nodes = document["nodes"].as_array_mut().unwrap();
    let mut loss = nodes.pop().unwrap();
    for (op, inputs, output) in [
        (json!({"op": "compare", "relation": "ge"}), json!([labels, first]), first + 1),
        (json!({"op": "cast", "to": "f32"}), json!([first + 1]), first + 2),
        (json!({"op": "reduce", "reduction": "sum", "axes": [0]}), json!([first + 2]), first + 3),
    ] {
        nodes.push(json!({"op": op, "inputs": inputs, "params": [], "output": output}));
    }
    loss["inputs"].as_array_mut().unwrap().push(json!(first + 3));
    nodes.push(loss);
    let end = nodes.len();
    document["layers"].as_array_mut().unwrap().last_mut().unwrap()["nodes"]["end"] = json!(end);
    document["reduction"] = json!("samples");
}

fn losses(place: &TestDir, model_dir: &str) -> Vec<f64> {
    let line = |line: &String| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap();
    let evaluations = place.evaluations(model_dir).into_iter().map(|(_, loss)| loss);
    place.train_lines(model_dir).iter().map(line).chain(evaluations).collect()
}

/// Compares losses of training and evaluation with those of the family, which are divided by the number of labels, too.
#[test]
fn loss_is_divided_by_the_sum_of_its_weight() {
    let place = place(0, &[]);
    place.succeed("train_and_eval -p params.yaml -o m --num_csx 2");
    place.succeed("train_and_eval -p family.yaml -o family");
    let (found, expected) = (losses(&place, "m"), losses(&place, "family"));
    assert_eq!((found.len(), expected.len()), (9, 9));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} for {expected}");
    }
}

#[test]
fn same_bits_on_any_number_of_systems_and_in_rounds() {
    let place = place(8, &[]);
    place.write("tiny.yaml", "wafer: {memoryBytes: 160kB}\n");
    let plan = place.succeed("plan -p params.yaml --json --appliance tiny.yaml").stdout;
    let plan: Value = serde_json::from_str(&plan).unwrap();
    assert!(plan["placement"]["rounds"].as_u64() > Some(1), "{}", plan["placement"]);
    let train = |flags: &str, model_dir: &str| -> RunResult {
        place.succeed(&format!("train_and_eval -p params.yaml -o {model_dir} {flags}"));
        place.result(model_dir, 6)
    };
    let baseline = train("--num_csx 1", "baseline");
    let flags = [
        "--num_csx 2",
        "--num_csx 4 --num_act_servers 3 --num_wgt_servers 3 --threads 2",
        "--num_csx 1 --appliance tiny.yaml",
        "--num_csx 3 --num_act_servers 2 --appliance tiny.yaml",
    ];
    for (number, flags) in flags.iter().enumerate() {
        let model_dir = format!("variant_{number}");
        assert_eq!(train(flags, &model_dir), baseline, "{flags}");
        assert_eq!(losses(&place, &model_dir), losses(&place, "baseline"), "{flags}");
    }
    place.succeed("train_and_eval -p params.yaml -o resumed --max_steps 3 --num_csx 3");
    assert_eq!(train("--num_csx 2", "resumed"), baseline);
}

#[test]
fn bits_are_independent_of_agents_that_die() {
    const STEPS: u64 = 200;
    let place = place(8, &[("eval_frequency: 2", "eval_frequency: 40\n    checkpoint_steps: 150")]);
    let mut job = Job::start(&place, STEPS);
    job.wait_for_step(20);
    job.kill("activation-1");
    job.join("activation-1");
    job.wait_for_step(60);
    job.kill("cs2-1");
    job.join("cs2-1");
    job.wait_for_step(100);
    job.replace_coordinator("m", STEPS);
    assert_eq!(job.end(), Some(0));
    place.succeed(&format!("train_and_eval -p params.yaml -o whole --num_csx 1 --max_steps {STEPS}"));
    assert_eq!(place.result("m", STEPS), place.result("whole", STEPS));
    assert_eq!(place.evaluations("m"), place.evaluations("whole"));
}

/// The divisor of a batch without labels that count is 0, and so is its loss, as with a single divisor.
#[test]
fn divisor_of_zero_ends_no_run() {
    let place = place(8, &[("vocab_size: 64", "vocab_size: 8")]);
    place.succeed("train_and_eval -p params.yaml -o m --num_csx 2");
    assert!(losses(&place, "m").iter().all(|loss| *loss == 0.0), "{:?}", losses(&place, "m"));
}
