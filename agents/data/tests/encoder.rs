//! Tests samples of encoders, from each kind of source.

use std::path::Path;

use millrace_data::{
    CsvRows, DataError, Dataset, EncoderLabels, EncoderSamples, Masking, SourceKind, SourceSpec, TextFiles,
    TokenizerName,
};

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nin\nthe\nbegin\n##ning\nwas\nword\n";
const PRETRAINING: EncoderLabels = EncoderLabels::Tokens { max_predictions: Some(4), predicts_next_sentence: true };

fn samples(task: EncoderLabels, masking: Option<Masking>) -> EncoderSamples {
    EncoderSamples { task, has_segments: true, vocab_size: 11, mask_token: None, masking, seed: 3, is_packed: false }
}

fn masking(whole_words: bool) -> Option<Masking> {
    Some(Masking { probability: 0.3, whole_words })
}

fn spec(kind: SourceKind, encoder: EncoderSamples) -> SourceSpec {
    SourceSpec { shuffle_seed: 3, encoder: Some(encoder), ..SourceSpec::new(kind, 12) }
}

/// Writes the files of a source of CSV rows, and returns it.
fn csv(dir: &Path, rows: CsvRows, text: &str) -> SourceKind {
    let write = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let mut paths = vec![write("data.csv", text)];
    if rows == CsvRows::TokenClasses {
        paths.push(write("classes.json", r#"{"O": 0, "B": 1, "I": 2}"#));
    }
    if rows.has_words() {
        paths.push(write("vocab.txt", VOCABULARY));
    }
    SourceKind::Csv { paths, rows, is_lower_case: true }
}

fn open(spec: &SourceSpec) -> Result<Dataset, DataError> {
    Dataset::open(spec, |_, _| {})
}

fn read(dataset: &Dataset, n: u64) -> Vec<(&'static str, Vec<i32>)> {
    let integers =
        |bytes: Vec<u8>| bytes.chunks(4).map(|chunk| i32::from_le_bytes(chunk.try_into().unwrap())).collect();
    let arrays = dataset.read(n, 1).unwrap();
    assert!(dataset.inputs().iter().zip(&arrays).all(|(input, array)| input.bytes() == array.len()));
    dataset.inputs().into_iter().map(|input| &*input.name.leak()).zip(arrays.into_iter().map(integers)).collect()
}

fn array<'a>(sample: &'a [(&'static str, Vec<i32>)], name: &str) -> &'a [i32] {
    &sample.iter().find(|(candidate, _)| *candidate == name).unwrap().1
}

#[test]
fn words_are_masked_by_number_of_the_sample() {
    let dir = tempfile::tempdir().unwrap();
    let text = "tokens,segment_ids,is_random_next\n\
                \"['[CLS]', 'In', 'the', 'begin', '##ning', '[SEP]', 'was', 'x', '[SEP]']\",\
                \"[0, 0, 0, 0, 0, 0, 1, 1, 1]\",1\n";
    let source = |whole_words| spec(csv(dir.path(), CsvRows::Words, text), samples(PRETRAINING, masking(whole_words)));
    let dataset = open(&source(false)).unwrap();
    let plain = [2, 5, 6, 7, 8, 3, 9, 1, 3];
    let mut masked = std::collections::BTreeSet::new();
    for n in 0..40 {
        let sample = read(&dataset, n);
        assert_eq!(array(&sample, "attention_mask"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(array(&sample, "token_type_ids"), [0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0]);
        assert_eq!(array(&sample, "next_sentence_label"), [1]);
        let (positions, labels) = (array(&sample, "masked_lm_positions"), array(&sample, "labels"));
        assert_eq!((positions.len(), labels[3]), (4, -1), "three of nine tokens are predicted");
        for (index, &token) in array(&sample, "input_ids")[..9].iter().enumerate() {
            let label = positions[..3].iter().position(|position| *position == index as i32).map(|index| labels[index]);
            assert!(label.is_none_or(|label| label == plain[index]) && (label.is_some() || token == plain[index]));
        }
        assert!(positions[..3].iter().all(|position| ![0, 5, 8].contains(position)), "{positions:?}");
        masked.insert(positions.to_vec());
        assert_eq!(read(&dataset, n), sample);
    }
    assert!(masked.len() > 10, "{masked:?}");
    let whole_words = open(&source(true)).unwrap();
    assert_ne!(whole_words.fingerprint(), dataset.fingerprint());
    for n in 0..40 {
        let sample = read(&whole_words, n);
        let used =
            &array(&sample, "masked_lm_positions")[..array(&sample, "labels").iter().filter(|l| **l >= 0).count()];
        assert_eq!(used.contains(&3), used.contains(&4), "{used:?}");
    }
}

#[test]
fn masked_rows_are_read_with_and_without_positions() {
    let dir = tempfile::tempdir().unwrap();
    let text = "input_ids,attention_mask,labels,masked_lm_positions,masked_lm_weights,token_type_ids,\
                next_sentence_label\n\
                \"[2, 4, 6, 3, 0]\",\"[1, 1, 1, 1, 0]\",\"[5, 0]\",\"[1, 0]\",\"[1.0, 0.0]\",\"[0, 0, 1, 1, 0]\",0\n";
    let source = spec(csv(dir.path(), CsvRows::Masked, text), samples(PRETRAINING, None));
    let sample = read(&open(&source).unwrap(), 7);
    assert_eq!(array(&sample, "input_ids")[..5], [2, 4, 6, 3, 0]);
    assert_eq!(array(&sample, "attention_mask"), [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((array(&sample, "masked_lm_positions")[0], array(&sample, "labels")), (1, &[5, -1, -1, -1][..]));

    let text = "input_ids,attention_mask,labels\n\"[2, 4, 3]\",\"[1, 1, 1]\",\"[-100, 5, -100]\"\n";
    let all_tokens = EncoderLabels::Tokens { max_predictions: None, predicts_next_sentence: false };
    let source = spec(csv(dir.path(), CsvRows::Masked, text), samples(all_tokens, None));
    let sample = read(&open(&source).unwrap(), 0);
    assert_eq!(array(&sample, "labels"), [-1, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1]);
}

#[test]
fn classes_of_sentences_tokens_and_summaries_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let class = samples(EncoderLabels::Class { classes: 3 }, None);
    let pairs = "sentence1\tsentence2\tgold_label\nThe \"word\tthe beginning\tcontradiction\n";
    let sample = read(&open(&spec(csv(dir.path(), CsvRows::SentencePairs, pairs), class.clone())).unwrap(), 0);
    assert_eq!(array(&sample, "input_ids")[..8], [2, 6, 1, 10, 3, 6, 7, 8]);
    assert_eq!(array(&sample, "token_type_ids")[..9], [0, 0, 0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(array(&sample, "labels"), [2]);

    let one = "sentence\tlabel\nin the beginning was the word in the beginning was the word\t1\n";
    let sample = read(&open(&spec(csv(dir.path(), CsvRows::Sentences, one), class.clone())).unwrap(), 0);
    assert_eq!(array(&sample, "input_ids"), [2, 5, 6, 7, 8, 9, 6, 10, 5, 6, 7, 3], "cut to the length of a sample");

    let classes = EncoderLabels::TokenClasses { classes: 3, counts_padding: false };
    let tokens = "tokens,labels\n[CLS] in the [SEP],O B I O\n";
    let sample = read(&open(&spec(csv(dir.path(), CsvRows::TokenClasses, tokens), samples(classes, None))).unwrap(), 0);
    assert_eq!(array(&sample, "labels"), [0, 1, 2, 0, -1, -1, -1, -1, -1, -1, -1, -1]);

    let summary = |has_words| samples(EncoderLabels::Sentences { max_sentences: 3, has_words }, None);
    let text = "input_token_ids,labels,segment_ids,cls_indices\n\"2,6,3,2,9,3\",\"0,1\",\"0,0,0,1,1,1\",\"0,3\"\n";
    let sample = read(&open(&spec(csv(dir.path(), CsvRows::Summaries, text), summary(false))).unwrap(), 0);
    assert_eq!((array(&sample, "cls_token_positions"), array(&sample, "labels")), (&[0, 3, 0][..], &[0, 1, -1][..]));
    let source = spec(csv(dir.path(), CsvRows::SummariesWithWords, text), summary(true));
    let sample = read(&open(&source).unwrap(), 0);
    assert_eq!(array(&sample, "sentence_ids"), [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(array(&sample, "word_ids"), [-1, 0, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1]);
}

#[test]
fn answers_beyond_the_sample_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let header = "unique_id,input_ids,input_mask,segment_ids,start_position,end_position";
    let text = format!(
        "{header}\n7,\"[2, 6, 3, 2, 9, 3, 0]\",\"[1, 1, 1, 1, 1, 1, 0]\",\"[0, 0, 0, 1, 1, 1, 0]\",3,4\n\
         8,\"[2, 6]\",\"[1, 1]\",\"[0, 0]\",1,12\n9,\"[2, 6]\",\"[1, 1]\",\"[0, 0]\",,\n"
    );
    let source = spec(csv(dir.path(), CsvRows::Answers, &text), samples(EncoderLabels::Span, None));
    let dataset = open(&source).unwrap();
    let sample = read(&dataset, 0);
    assert_eq!(array(&sample, "input_ids")[..6], [2, 6, 3, 2, 9, 3]);
    assert_eq!(array(&sample, "attention_mask")[4..8], [1, 1, 0, 0]);
    assert_eq!(array(&sample, "token_type_ids")[2..7], [0, 1, 1, 1, 0]);
    assert_eq!(array(&sample, "labels"), [3, 4]);
    assert_eq!(array(&read(&dataset, 1), "labels"), [1, -1], "cut from a longer text");
    let error = dataset.read(2, 1).unwrap_err().to_string();
    assert!(error.contains("start_position") && error.contains("an integer"), "{error}");
}

#[test]
fn windows_of_a_text_have_special_tokens_and_random_halves() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    std::fs::write(&path, "abcdefghi".repeat(20)).unwrap();
    let kind = SourceKind::Text(TextFiles::new(vec![path.display().to_string()], TokenizerName::Bytes));
    let encoder = EncoderSamples { vocab_size: 260, ..samples(PRETRAINING, masking(false)) };
    let source = SourceSpec { cache_dir: Some(dir.path().join("cache")), ..spec(kind, encoder) };
    let dataset = open(&source).unwrap();
    let mut random = 0;
    for n in 0..19 {
        let sample = read(&dataset, n);
        let mut tokens = array(&sample, "input_ids").to_vec();
        for (position, label) in array(&sample, "masked_lm_positions").iter().zip(array(&sample, "labels")) {
            if *label >= 0 {
                tokens[*position as usize] = *label;
            }
        }
        let first: Vec<i32> = b"abcd".iter().map(|&byte| byte.into()).collect();
        assert_eq!((tokens[0], &tokens[1..5], tokens[5], tokens[11]), (257, &first[..], 258, 258), "{n}");
        random += array(&sample, "next_sentence_label")[0];
    }
    assert!((3..17).contains(&random), "{random}");
    // Another special token may be the mask; the others keep their order.
    let with_mask = |mask_token| {
        let encoder = EncoderSamples { mask_token, vocab_size: 260, ..samples(PRETRAINING, masking(false)) };
        open(&SourceSpec { encoder: Some(encoder), ..source.clone() })
    };
    let last = with_mask(Some(259)).unwrap();
    assert_eq!((array(&read(&last, 0), "input_ids")[0], array(&read(&last, 0), "input_ids")[5]), (256, 257));
    assert_ne!(last.fingerprint(), dataset.fingerprint());
    let error = with_mask(Some(255)).err().unwrap();
    assert!(matches!(error, DataError::WrongMaskToken { token: 255, expected: 256 }), "{error}");
    let small = EncoderSamples { vocab_size: 100, ..samples(PRETRAINING, masking(false)) };
    let error = open(&SourceSpec { encoder: Some(small), ..source }).err().unwrap();
    assert!(matches!(error, DataError::VocabularyTooSmall { .. }), "{error}");
}

#[test]
fn bad_rows_are_named_by_file_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let masked = |row: &str| format!("input_ids,attention_mask,labels,token_type_ids,next_sentence_label\n{row}\n");
    for (row, message) in [
        ("\"[2, 11]\",\"[1, 1]\",\"[-1, -1]\",[0],0", "token 11 is outside the vocabulary of 11"),
        ("\"[2, 1]\",\"[1, 1]\",\"[-1, 12]\",[0],0", "label 12"),
        ("\"[2, 1]\",\"[1, 1]\",\"[-1, 1]\",[0],2", "label 2"),
        ("\"[2, 1]\",\"[1, 1]\",\"[1, 1, 1, 1, 1]\",[0],0", "it has 5 labels, more than the 4"),
        ("\"[2, x]\",\"[1, 1]\",\"[1]\",[0],0", "the column input_ids is not a list of integers"),
        ("\"[2, 1]\",\"[1, 1]\"", "the column labels is not a field"),
    ] {
        let source = spec(csv(dir.path(), CsvRows::Masked, &masked(row)), samples(PRETRAINING, None));
        let error = open(&source).err().expect(message).to_string();
        assert!(error.starts_with("row 0 of ") && error.contains(message), "{row}: {error}");
    }
    let long = masked(&format!("\"{:?}\",\"{:?}\",[1],[0],0", [2; 13], [1; 13]));
    let error = open(&spec(csv(dir.path(), CsvRows::Masked, &long), samples(PRETRAINING, None))).err().unwrap();
    assert!(error.to_string().contains("13 tokens, more than max_sequence_length 12"), "{error}");
    let pair = "sentence1\tsentence2\tgold_label\na\tb\t-\n";
    let class = samples(EncoderLabels::Class { classes: 3 }, None);
    let error = open(&spec(csv(dir.path(), CsvRows::SentencePairs, pair), class)).err().unwrap();
    assert!(error.to_string().contains("gold_label is not entailment, neutral or contradiction"), "{error}");
}

/// Labels of -100 do not count, and padding ends the sample.
#[test]
fn stored_samples_of_encoders_are_read() {
    let fixture = |name: &str| format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let all_tokens = EncoderLabels::Tokens { max_predictions: None, predicts_next_sentence: false };
    let stored = |name: &str| SourceSpec {
        seq_len: 16,
        ..spec(
            SourceKind::EncoderHdf5 { paths: vec![fixture(name)] },
            EncoderSamples { vocab_size: 64, ..samples(all_tokens, None) },
        )
    };
    let dataset = open(&stored("encoder.h5")).unwrap();
    assert_eq!(dataset.windows(), 3);
    let sample = read(&dataset, 2);
    let (ids, labels) = (array(&sample, "input_ids"), array(&sample, "labels"));
    assert_eq!(array(&sample, "attention_mask"), [&[1; 14][..], &[0; 2]].concat());
    let counted: Vec<usize> = (0..16).filter(|position| labels[*position] != -1).collect();
    assert_eq!(counted, [2, 7, 12]);
    assert!(counted.iter().all(|position| labels[*position] == ids[*position]));
    let error = open(&stored("masked.h5")).err().unwrap().to_string();
    assert!(error.contains("attention_mask"), "{error}");
    assert!(matches!(open(&stored("uint16.h5")), Err(DataError::NotForEncoders)));
}

/// The labels of a sample may be in a dataset of their own, at all positions or at those of predictions.
#[test]
fn separate_labels_and_packed_sequences_are_read() {
    let fixture = |name: &str| vec![format!("{}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))];
    let stored = |name: &str, max_predictions, is_packed| {
        let task = EncoderLabels::Tokens { max_predictions, predicts_next_sentence: false };
        let encoder = EncoderSamples { vocab_size: 64, has_segments: false, is_packed, ..samples(task, None) };
        SourceSpec { seq_len: 16, ..spec(SourceKind::EncoderHdf5 { paths: fixture(name) }, encoder) }
    };
    let expected = open(&stored("encoder.h5", None, false)).unwrap();
    let beside = open(&stored("encoder_labels.h5", None, false)).unwrap();
    assert_eq!(read(&beside, 1), read(&expected, 1));

    let packed = open(&stored("encoder_packed.h5", Some(4), true)).unwrap();
    let sample = read(&packed, 0);
    let ids = array(&sample, "input_ids");
    assert_eq!(array(&sample, "masked_lm_positions"), [2, 7, 12, 0]);
    assert_eq!(array(&sample, "labels"), [ids[2], ids[7], ids[12], -1]);
    assert_eq!(array(&sample, "attention_span"), [5, 4, 3, 2, 1, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(array(&sample, "position_ids"), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);

    // An unpacked sample is one sequence.
    let sample = read(&open(&stored("encoder_labels.h5", None, true)).unwrap(), 2);
    assert_eq!(array(&sample, "attention_span")[..14], [13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    assert_eq!(array(&sample, "position_ids")[..14], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    let error = open(&stored("encoder_packed.h5", Some(4), false)).err().unwrap().to_string();
    assert!(error.contains("use_vsl"), "{error}");
}
