//! Tests training of a T5 and of a Transformer: on bytes of a text, and on files of the public model zoo.

use super::harness::TestDir;

const MODEL: &str = "name: t5\n    src_vocab_size: 256\n    extra_ids: 8\n    hidden_size: 32\n    d_kv: 8\n    \
                     num_heads: 4\n    filter_size: 48\n    encoder_num_hidden_layers: 2\n    \
                     decoder_num_hidden_layers: 1\n    dropout_rate: 0.1\n    lm_loss_weight: 0.1\n";
const VOCABULARY: &str = "<pad>\n</s>\n<unk>\nin\nthe\nbegin@@\nning\nwas\nword\n";

/// Writes params with dropout of the section `model`, which reads `data`.
fn params(place: &TestDir, name: &str, model: &str, data: &str) {
    place.write(
        name,
        format!(
            "train_input:\n    src_max_sequence_length: 24\n    tgt_max_sequence_length: 12\n    batch_size: 8\n    \
             micro_batch_size: 1\n    shuffle: True\n    validation_fraction: 0.25\n    {data}\n\
             eval_input:\n    batch_size: 8\n    micro_batch_size: 1\n\
             model:\n    {model}\
             optimizer: {{optimizer_type: AdamW, learning_rate: 1e-2, max_gradient_norm: 0.5}}\n\
             runconfig: {{max_steps: 6, log_steps: 1, eval_frequency: 2, eval_steps: 2, seed: 3}}\n"
        ),
    );
}

#[test]
fn same_bits_on_any_topology_and_after_a_stop() {
    let place = TestDir::new();
    place.write("text.txt", "In the beginning was the Word, and the Word was with God. ".repeat(40));
    let data = "data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    data_files: text.txt";
    params(&place, "params.yaml", MODEL, data);
    let train = |flags: &str, model_dir: &str| {
        place.succeed(&format!("train_and_eval -p params.yaml -o {model_dir} {flags}"));
        place.result(model_dir, 6)
    };
    let baseline = train("--num_csx 1", "baseline");
    for (number, flags) in ["--num_csx 2 --num_act_servers 2", "--num_csx 4 --threads 2"].into_iter().enumerate() {
        assert_eq!(train(flags, &format!("variant_{number}")), baseline, "{flags}");
    }
    place.succeed("train_and_eval -p params.yaml -o resumed --max_steps 3 --num_csx 3");
    assert_eq!(train("--num_csx 2", "resumed"), baseline);
    assert_eq!(place.evaluations("baseline").len(), 3);
}

#[test]
fn lines_of_words_train() {
    let place = TestDir::new();
    place.write("vocab.txt", VOCABULARY);
    std::fs::create_dir(place.path("lines")).unwrap();
    place.write("lines/part-0", "in the begin@@ ning was the word\nthe word was in the begin@@ ning\n".repeat(20));
    place.write("lines/meta.dat", "part-0 40\n");
    let spans = "data_processor: T5DynamicDataProcessor\n    src_data_dir: lines\n    src_vocab_file: vocab.txt";
    let small = MODEL.replace("src_vocab_size: 256", "src_vocab_size: 9");
    params(&place, "spans.yaml", &small, spans);
    place.succeed("train_and_eval -p spans.yaml -o spans --num_csx 2");
    assert_eq!(place.evaluations("spans").len(), 3);
    place.succeed("checkpoint export spans/checkpoint_6 --to hf exported");
    let config = std::fs::read_to_string(place.path("exported/config.json")).unwrap();
    let tokenizer = std::fs::read_to_string(place.path("exported/tokenizer.json")).unwrap();
    assert!(config.contains("\"decoder_start_token_id\": 0") && config.contains("\"eos_token_id\": 1"), "{config}");
    assert!(tokenizer.contains("\"<extra_id_0>\":16"), "{tokenizer}");

    place.write("other.txt", "the word was the word\nin\n".repeat(20));
    let pairs = "data_processor: TransformerDynamicDataProcessor\n    src_data_dir: lines/part-0\n    \
                 tgt_data_dir: other.txt\n    src_vocab_file: vocab.txt";
    let transformer = small.replace("name: t5", "name: transformer").replace("extra_ids: 8", "extra_ids: 0");
    params(&place, "pairs.yaml", &transformer, pairs);
    place.succeed("train_and_eval -p pairs.yaml -o pairs --num_csx 2");
    assert_eq!(place.evaluations("pairs").len(), 3);
}

#[test]
fn bad_lines_are_rejected_before_a_run() {
    let place = TestDir::new();
    place.write("vocab.txt", VOCABULARY);
    place.write("empty.txt", "");
    place.write("text.txt", "in the begin@@ ning\n".repeat(40));
    place.write("short.txt", "the word\n");
    let small = MODEL.replace("src_vocab_size: 256", "src_vocab_size: 9");
    let few = MODEL.replace("src_vocab_size: 256", "src_vocab_size: 1");
    let lines = |file: &str| {
        format!("data_processor: T5DynamicDataProcessor\n    src_data_dir: {file}\n    src_vocab_file: vocab.txt")
    };
    let pairs = "data_processor: TransformerDynamicDataProcessor\n    src_data_dir: text.txt\n    \
                 tgt_data_dir: short.txt\n    src_vocab_file: vocab.txt";
    for (model, data, says) in [
        (&small, lines("gone.txt"), "data file gone.txt does not exist"),
        (&small, lines("empty.txt"), "data file empty.txt is empty, or has only white space"),
        (&few, lines("text.txt"), "the vocabulary of 9 is too small for the data, whose largest token is 9"),
        (&small, lines("text.txt").replace("vocab.txt", "short.txt"), "vocabulary short.txt has no word <unk>"),
        (&small, pairs.to_owned(), "data file text.txt has 40 lines, but short.txt has 1"),
    ] {
        params(&place, "bad.yaml", model, &data);
        let planned = place.run("plan -p bad.yaml").stdout;
        assert!(planned.contains(says), "{says}\n{planned}");
        let refused = place.run("train -p bad.yaml -o bad");
        assert_eq!(refused.code(), 2, "{}\n{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(says), "{says}\n{}", refused.stderr);
    }
    assert!(!place.path("bad").exists());
}
