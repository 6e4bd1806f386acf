//! Tests training of a BERT: on generated tokens and on CSV files of the public model zoo.

use super::harness::TestDir;

const SYNTHETIC: &str = "data_processor: SyntheticDataProcessor";
const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nin\nthe\nbegin\n##ning\nwas\nword\n";

/// Writes params of a BERT with dropout and both losses, which reads `data`.
fn params(place: &TestDir, name: &str, data: &str) {
    let data = format!("max_predictions_per_seq: 3\n    {data}");
    place.params(name, &[("name: gpt2", "name: bert\n    mlm_loss_weight: 0.5"), (SYNTHETIC, &data)]);
}

fn rows(bad: &str) -> String {
    let row = |n: usize| {
        let word = ["in", "was", "word"][n % 3];
        format!(
            "\"['[CLS]', 'the', 'begin', '##ning', '[SEP]', '{word}', '[SEP]']\",\"[0, 0, 0, 0, 0, 1, 1]\",{}\n",
            n % 2
        )
    };
    let rows: String = (0..20).map(row).collect();
    format!("tokens,segment_ids,is_random_next\n{rows}{bad}")
}

#[test]
fn same_bits_on_any_topology_and_after_a_stop() {
    let place = TestDir::new();
    params(&place, "params.yaml", SYNTHETIC);
    place.write("tiny.yaml", "wafer: {memoryBytes: 160kB}\n");
    let train = |flags: &str, model_dir: &str| {
        place.succeed(&format!("train_and_eval -p params.yaml -o {model_dir} {flags}"));
        place.result(model_dir, 6)
    };
    let baseline = train("--num_csx 1", "baseline");
    for (number, flags) in [
        "--num_csx 3 --num_wgt_servers 1 --num_act_servers 2",
        "--num_csx 4 --threads 2",
        "--num_csx 2 --appliance tiny.yaml",
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(train(flags, &format!("variant_{number}")), baseline, "{flags}");
    }
    place.succeed("train_and_eval -p params.yaml -o resumed --max_steps 3 --num_csx 3");
    assert_eq!(train("--num_csx 2", "resumed"), baseline);
}

#[test]
fn words_of_csv_files_train_until_a_bad_row() {
    let place = TestDir::new();
    place.write("vocab.txt", VOCABULARY);
    place.write("good.csv", rows(""));
    let csv = |file: &str| {
        format!("data_processor: BertCSVDynamicMaskDataProcessor\n    data_dir: {file}\n    vocab_file: vocab.txt")
    };
    params(&place, "good.yaml", &csv("good.csv"));
    place.succeed("train_and_eval -p good.yaml -o m --num_csx 2");
    assert_eq!(place.evaluations("m").len(), 3);
    // Sentences of such a model are exported with its vocabulary.
    place.succeed("checkpoint export m/checkpoint_6 --to hf exported");
    let read = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(place.path(&format!("exported/{file}"))).unwrap()).unwrap()
    };
    assert_eq!(read("tokenizer.json")["model"]["vocab"]["##ning"], 8);
    assert_eq!(read("tokenizer_config.json")["mask_token"], "[MASK]");
    assert_eq!(read("config.json")["architectures"][0], "BertForPreTraining");
    // A classifier begins with the weights of this model.
    let classifier = csv("good.csv").replace("BertCSVDynamicMaskDataProcessor", "BertTokenClassifierDataProcessor");
    let classifier = classifier + "\n    label_vocab_file: labels.json";
    place.write("labels.json", "{\"O\": 0, \"B\": 1}");
    place.params(
        "tuned.yaml",
        &[("name: gpt2", "name: bert/token_classifier\n    num_classes: 2"), (SYNTHETIC, &classifier)],
    );
    let imported = place.succeed("checkpoint import exported -p tuned.yaml -o tuned").stdout;
    assert!(imported.contains("initial values: classifier.weight, classifier.bias"), "{imported}");

    place.write("bad.csv", rows("\"['[CLS]', 'the]\",\"[0, 0]\",0\n"));
    params(&place, "bad.yaml", &csv("bad.csv"));
    let ended = place.run("train -p bad.yaml -o bad --num_csx 2");
    assert_eq!(ended.code(), 1, "{}\n{}", ended.stdout, ended.stderr);
    let says = "row 20 of bad.csv: the column tokens is not a list of quoted words";
    assert!(ended.stderr.contains(says), "{}\n{}", ended.stdout, ended.stderr);

    place.write("other.csv", "text,label\na,0\n");
    params(&place, "other.yaml", &csv("other.csv"));
    let refused = place.run("train -p other.yaml -o other");
    assert_eq!(refused.code(), 2);
    let says = "data file other.csv has no column \"tokens\"; its first line names \"text\", \"label\"";
    assert!(refused.stderr.contains(says), "{}", refused.stderr);
}

/// The class of a word is a function of the word, so that the model learns all classes.
#[test]
fn classes_of_tokens_are_learnt_and_have_an_f1_score() {
    let place = TestDir::new();
    place.write("vocab.txt", VOCABULARY);
    place.write("labels.json", r#"{"O": 0, "B-LOC": 1, "I-LOC": 2}"#);
    let rows = "in the word,O B-LOC I-LOC\nthe word was in,B-LOC I-LOC O O\n".repeat(20);
    place.write("data.csv", format!("tokens,labels\n{rows}"));
    let files = "data_dir: data.csv\n    vocab_file: vocab.txt\n    label_vocab_file: labels.json";
    let data = &format!("data_processor: BertTokenClassifierDataProcessor\n    {files}");
    let model = "name: bert/token_classifier\n    num_classes: 3";
    place.params("params.yaml", &[("name: gpt2", model), (SYNTHETIC, data), ("max_steps: 6", "max_steps: 40")]);
    let metrics = |systems: u32, steps: u32| {
        let flags = format!("--num_csx {systems} --max_steps {steps}");
        let trained = place.succeed(&format!("train_and_eval -p params.yaml -o m{systems}_{steps} {flags}")).stdout;
        trained.lines().rfind(|line| line.starts_with("Evaluation metrics:")).unwrap().to_owned()
    };
    let early = metrics(1, 1);
    assert!(early.contains("eval/f1_score = 0."), "{early}");
    assert_eq!(metrics(3, 1), early);
    assert_eq!(metrics(2, 40), "Evaluation metrics: eval/accuracy = 1.00000, eval/f1_score = 1.00000");
}
