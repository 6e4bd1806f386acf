//! Tests of the samples of an encoder with a decoder.

use std::path::Path;

use millrace_data::{
    DataError, Dataset, LineFiles, LineRows, Seq2SeqSamples, SourceKind, SourceSpec, TextFiles, TokenizerName, inspect,
};

const NO_LABEL: i32 = -100;

fn spec(kind: SourceKind, lengths: [usize; 2], vocab_size: u32) -> SourceSpec {
    SourceSpec {
        shuffle_seed: 3,
        cache_dir: Some(std::env::temp_dir().join("millrace-test-cache")),
        seq2seq: Some(Seq2SeqSamples { target_length: lengths[1], vocab_size, target_vocab_size: vocab_size, seed: 3 }),
        ..SourceSpec::new(kind, lengths[0])
    }
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Returns the arrays of a sample.
fn sample(dataset: &Dataset, n: u64) -> [Vec<i32>; 5] {
    let names: Vec<String> = dataset.inputs().into_iter().map(|input| input.name).collect();
    assert_eq!(names, ["input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask", "labels"]);
    let integers =
        |bytes: Vec<u8>| bytes.chunks_exact(4).map(|four| i32::from_le_bytes(four.try_into().unwrap())).collect();
    let arrays: Vec<Vec<i32>> = dataset.read(n, 1).unwrap().into_iter().map(integers).collect();
    arrays.try_into().unwrap()
}

fn error(spec: &SourceSpec) -> String {
    let opened = Dataset::open(spec, |_, _| {}).err().map(|error: DataError| error.to_string());
    let inspected = inspect(spec).and_then(|found| found.epoch_samples(spec)).err().map(|error| error.to_string());
    assert!(inspected.is_none() || inspected == opened, "{inspected:?}");
    opened.unwrap()
}

#[test]
fn windows_of_text_have_spans_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let text = "In the beginning God created the heaven and the earth. ".repeat(20);
    let paths = vec![write(dir.path(), "a.txt", &text)];
    let kind = SourceKind::Text(TextFiles::new(paths, TokenizerName::Bytes));
    let spec = spec(kind.clone(), [32, 12], 280);
    let dataset = Dataset::open(&spec, |_, _| {}).unwrap();
    assert_eq!(inspect(&spec).unwrap().epoch_samples(&spec).unwrap(), Some(dataset.windows()));
    let length = (text.len() - 1) / dataset.windows() as usize;
    for n in 0..dataset.windows() {
        let [inputs, mask, decoder, decoder_mask, labels] = sample(&dataset, n);
        assert_eq!(sample(&dataset, n)[0], inputs, "sample {n} is the same when it is read again");
        let used = mask.iter().filter(|bit| **bit == 1).count();
        let targets = decoder_mask.iter().filter(|bit| **bit == 1).count();
        assert!(mask[..used].iter().all(|bit| *bit == 1) && (inputs[used - 1], decoder[0]) == (278, 279));
        assert_eq!(decoder[1..targets], labels[..targets - 1], "teacher forcing");
        assert_eq!(labels[targets - 1], 278);
        assert!(labels[targets..].iter().all(|label| *label == NO_LABEL));
        // Without sentinels, inputs and targets are the window.
        let mut letters: Vec<i32> = inputs[..used].iter().chain(&labels[..targets]).copied().collect();
        letters.retain(|token| *token < 256);
        letters.sort_unstable();
        let begin = n as usize * length;
        let mut window: Vec<i32> = text.as_bytes()[begin..begin + length].iter().map(|byte| (*byte).into()).collect();
        window.sort_unstable();
        assert_eq!(letters, window, "{n}");
    }
    let next_pass = sample(&dataset, dataset.windows());
    assert_ne!(next_pass[0], sample(&dataset, 0)[0], "each pass has other spans");
    let small = error(&SourceSpec {
        seq2seq: spec.seq2seq.clone().map(|samples| Seq2SeqSamples { vocab_size: 120, ..samples }),
        ..spec.clone()
    });
    assert!(small.contains("vocabulary of 120 is too small"), "{small}");
    let short = error(&SourceSpec { seq_len: 2, ..spec });
    assert!(short.contains("samples of 2 and 12 tokens have no room"), "{short}");
}

fn lines(paths: Vec<String>, rows: LineRows, targets: usize, vocabularies: usize) -> SourceKind {
    SourceKind::Lines(LineFiles { paths, rows, targets, vocabularies, is_lower_case: false })
}

#[test]
fn lines_have_spans_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let words = write(dir.path(), "vocab.txt", "<pad>\n</s>\n<unk>\na\nb\nc\nd\n");
    let text = write(dir.path(), "text", "a b c d\n\na b\nb\na x c\n");
    let spec = spec(lines(vec![text, words.clone()], LineRows::Spans, 0, 1), [4, 4], 12);
    let dataset = Dataset::open(&spec, |_, _| {}).unwrap();
    // A sample has up to three words.
    assert_eq!((dataset.windows(), inspect(&spec).unwrap().samples), (5, Some(5)));
    let [inputs, mask, decoder, decoder_mask, labels] = sample(&dataset, 0);
    assert_eq!((inputs, mask), (vec![3, 4, 11, 1], vec![1; 4]));
    assert_eq!((decoder, decoder_mask, labels), (vec![0, 11, 5, 0], vec![1, 1, 1, 0], vec![11, 5, 1, NO_LABEL]));
    assert_eq!(sample(&dataset, 1)[0], [6, 1, 1, 1]);
    assert_eq!(sample(&dataset, 1)[4], [1, NO_LABEL, NO_LABEL, NO_LABEL]);
    assert_eq!(sample(&dataset, 4)[0], [3, 2, 11, 1]);

    let spec_with = |name: &str, text: &str, vocab_size: u32| {
        let mut spec = spec.clone();
        spec.kind = lines(vec![write(dir.path(), name, text), words.clone()], LineRows::Spans, 0, 1);
        spec.seq2seq = spec.seq2seq.map(|samples| Seq2SeqSamples { vocab_size, ..samples });
        error(&spec)
    };
    assert!(spec_with("empty", "", 12).contains("empty, or has only white space"));
    assert!(spec_with("small", "a b\n", 7).contains("vocabulary of 7 is too small for the data"));
}

#[test]
fn pairs_of_lines_are_source_and_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| write(dir.path(), name, text);
    let [english, german] =
        [path("en", "<s>\n</s>\n<unk>\nthe\nhouse\n"), path("de", "<s>\n</s>\n<unk>\ndas\nHaus\nHof\n")];
    let sources = path("text.en", "the house\nthe the the the the\nhouse\n");
    let targets = path("text.de", "das Haus\ndas\nHof und Haus\n");
    let paths = vec![sources, targets, english.clone(), german.clone()];
    let pairs = spec(lines(paths, LineRows::Pairs, 1, 2), [5, 4], 6);
    let dataset = Dataset::open(&pairs, |_, _| {}).unwrap();
    assert_eq!(dataset.windows(), 2, "the second pair is too long");
    let [inputs, mask, decoder, decoder_mask, labels] = sample(&dataset, 0);
    assert_eq!((inputs, mask), (vec![3, 4, 1, 1, 1], vec![1, 1, 1, 0, 0]));
    assert_eq!((decoder, decoder_mask), (vec![0, 3, 4, 0], vec![1, 1, 1, 0]));
    assert_eq!(labels, [3, 4, 1, NO_LABEL]);
    assert_eq!(sample(&dataset, 1)[4], [5, 2, 4, 1]);

    // A directory with a list of pairs.
    path("meta.dat", "text.en text.de 3\n");
    let paths = vec![dir.path().display().to_string(), english, german];
    let listed = SourceSpec { kind: lines(paths, LineRows::Pairs, 0, 2), ..pairs };
    let listed = Dataset::open(&listed, |_, _| {}).unwrap();
    assert_eq!((sample(&listed, 0), listed.fingerprint()), (sample(&dataset, 0), dataset.fingerprint()));
}
