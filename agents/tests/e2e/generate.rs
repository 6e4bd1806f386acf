//! Tests of text that is generated with the checkpoint of a run.

use crate::harness::TestDir;

/// Trains on text whose tokens are bytes, with room for 16.
fn trained() -> TestDir {
    let place = TestDir::new();
    place.write("own.txt", "In the beginning was the word. ".repeat(40));
    let text = "data_processor: GptTextDataProcessor\n    tokenizer: bytes\n    data_files: own.txt";
    place.params(
        "text.yaml",
        &[("data_processor: SyntheticDataProcessor", text), ("    vocab_size: 64\n", "    vocab_size: 256\n")],
    );
    place.succeed("train -p text.yaml -o m");
    place
}

#[test]
fn generated_text_depends_on_seed_but_not_on_threads() {
    let place = trained();
    let text = |flags: &str| place.succeed(&format!("generate -c m --prompt In {flags}")).stdout;
    let greedy = text("--threads 1");
    assert!(greedy.starts_with("In") && greedy.ends_with('\n'), "{greedy:?}");
    assert_eq!(text("--threads 3"), greedy);
    assert_eq!(place.succeed("generate -c m/checkpoint_6 --prompt In").stdout, greedy);
    let random = "--temperature 3 --top_k 200 --top-p 0.99 --ignore_end";
    let seeds = [1, 1, 2].map(|seed| text(&format!("{random} --seed {seed} --threads {}", seed + 1)));
    assert_eq!(seeds[0], seeds[1]);
    assert_ne!(seeds[0], seeds[2]);

    let tokens = place.succeed("generate -c m --prompt_tokens 73,110 -n 3").stdout;
    let bytes: Vec<u8> = tokens.split_whitespace().map(|token| token.parse().unwrap()).collect();
    assert_eq!(bytes.len(), 3, "{tokens}");
    let full = place.succeed("generate -c m --prompt_tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14 --ignore_end");
    assert_eq!(full.stdout.split_whitespace().count(), 2, "the model has 16 positions: {}", full.stdout);
    assert!(full.stderr.contains("all positions of the model are used"), "{}", full.stderr);
}

#[test]
fn tokenizer_file_is_kept_with_the_trained_model() {
    let place = TestDir::new();
    let tokenizer = include_bytes!("../../data/tests/fixtures/tokenizers/llama3.json");
    place.write("llama.json", tokenizer);
    place.write("own.jsonl", "{\"body\": \"In the beginning was the word.\"}\n".repeat(40));
    let text = "data_processor: GptTextDataProcessor\n    tokenizer_file: llama.json\n    text_key: body\n    \
                data_files: own.jsonl";
    place.params(
        "text.yaml",
        &[("data_processor: SyntheticDataProcessor", text), ("    vocab_size: 64\n", "    vocab_size: 400\n")],
    );
    place.succeed("train -p text.yaml -o m");
    std::fs::remove_file(place.path("llama.json")).unwrap();
    assert_eq!(std::fs::read(place.path("m/tokenizer.json")).unwrap(), tokenizer);

    let text = place.succeed("generate -c m --prompt In -n 5").stdout;
    assert!(text.starts_with("In") && text.len() > 4, "{text:?}");
    place.succeed("checkpoint export m/checkpoint_6 --to hf exported");
    assert_eq!(std::fs::read(place.path("exported/tokenizer.json")).unwrap(), tokenizer);

    std::fs::remove_file(place.path("m/tokenizer.json")).unwrap();
    let ended = place.run("generate -c m --prompt In");
    assert!(ended.code() == 2 && ended.stderr.contains("there is no tokenizer m/tokenizer.json"), "{}", ended.stderr);
    let without = place.succeed("checkpoint export m/checkpoint_6 --to hf weights");
    assert!(without.stderr.contains("--tokenizer FILE adds it") && !place.path("weights/tokenizer.json").exists());
}

#[test]
fn wrong_requests_are_one_sentence_with_a_hint() {
    let place = trained();
    place.succeed("train -p params.yaml -o numbers --max_steps 1");
    std::fs::create_dir(place.path("empty")).unwrap();
    for (line, says) in [
        ("generate -c gone", "gone is not a directory"),
        ("generate -c empty", "empty has no checkpoint"),
        ("generate", "--checkpoint"),
        ("generate -c m --prompt In_the_beginning_was_the_word", "29 tokens are more than the model's 16 positions"),
        ("generate -c m --prompt_tokens 3,256", "token 256 is not in the model's vocabulary of 256"),
        ("generate -c m --prompt_tokens x", "x"),
        ("generate -c m --tokenizer words", "words"),
        ("generate -c m --temperature -1", "the temperature is -1"),
        ("generate -c m --top_k 0", "top_k is 0"),
        ("generate -c m --top_p 2", "top_p is 2"),
        ("generate -c numbers --prompt In", "trained on tokens, and has no tokenizer"),
        ("generate -c numbers --prompt In --tokenizer bytes", "token 73 is not in the model's vocabulary of 64"),
    ] {
        let ended = place.run(line);
        assert_eq!(ended.code(), 2, "{line}\n{}", ended.stderr);
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(says), "{line}\n{}", ended.stderr);
        assert!(ended.stderr.contains("\nhint: ") && ended.stdout.is_empty(), "{line}\n{}", ended.stderr);
    }
}
