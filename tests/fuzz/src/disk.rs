//! Targets for files on disk: journal, checkpoint, token files, HDF5 files, CSV files, TFRecord files, images.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};

use millrace_checkpoint::Checkpoint;
use millrace_data::{
    CsvRows, Dataset, EncoderLabels, EncoderSamples, Masking, SourceKind, SourceSpec, SplitPart, TextDecoder,
    TextFiles, TfRecordRows, TokenType, Tokenizer, TokenizerName, tfrecord_frame,
};
use millrace_params::{ImageFormat, ImagePart, ImageShape, ImageSource, ImageTransform};
use millrace_telemetry::journal::{JournalEvent, JournalReader, JournalWriter, RunPhase, RunState};
use tempfile::TempDir;

/// Runs `run` with a directory for this thread and `name`.
pub(super) fn with_dir(name: &str, run: impl FnOnce(&Path)) {
    thread_local! {
        static DIR: OnceCell<TempDir> = const { OnceCell::new() };
    }
    DIR.with(|dir| {
        let dir = dir.get_or_init(|| TempDir::new().expect("a temporary directory")).path().join(name);
        fs::create_dir_all(&dir).expect("a directory");
        run(&dir);
    });
}

pub(super) fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("a file");
}

/// Reads a journal's file to its end; then the next attempt continues the journal.
pub fn journal(bytes: &[u8]) {
    with_dir("journal", |dir| {
        let file = |attempt: u32| dir.join(format!("journal/attempt-{attempt}.jsonl"));
        fs::create_dir_all(dir.join("journal")).expect("a directory");
        write(&file(1), bytes);
        let _ = fs::remove_file(file(2));
        let Ok(mut reader) = JournalReader::open(dir, 1) else { return };
        let mut last = 0;
        while let Ok(Some(entry)) = reader.next_entry() {
            assert!(entry.seq > last || last == 0, "numbers rise");
            last = entry.seq;
        }
        let Ok(journal) = JournalWriter::open(dir, 2) else { return };
        let state = RunState {
            state: RunPhase::Starting,
            step: 0,
            total_steps: None,
            num_csx: 1,
            requested_csx: None,
            epoch: None,
            resumed: None,
            lost_agents: Default::default(),
            slow_agents: Default::default(),
            storage_stall: None,
            note: None,
        };
        drop(journal.append(JournalEvent::State(state)));
        let followed = journal.follow(1).poll(1000).unwrap_or_default();
        assert!(followed.is_sorted_by_key(|entry| entry.seq), "numbers rise");
    });
}

/// Returns the path of a checkpoint of release 0.1.0.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/0.1.0/model_dir/checkpoint_4")
}

/// Opens a manifest with the files of a real checkpoint, as given and with a valid checksum.
pub fn manifest(bytes: &[u8]) {
    const KEY: &[u8] = b"{\n  \"checksum\": \"";
    with_dir("checkpoint_4", |dir| {
        if !dir.join("layout.json").exists() {
            for part in ["", "parameters", "optimizer"] {
                fs::create_dir_all(dir.join(part)).expect("a directory");
                for entry in fs::read_dir(golden().join(part)).expect("the golden checkpoint").flatten() {
                    if entry.path().is_file() {
                        fs::copy(entry.path(), dir.join(part).join(entry.file_name())).expect("a copy");
                    }
                }
            }
        }
        let path = dir.join("manifest.json");
        let _ = fs::remove_file(&path);
        write(&path, bytes);
        drop(Checkpoint::open(dir));
        // With a valid checksum the manifest's content is read, too.
        if let Some(rest) = bytes.strip_prefix(KEY).and_then(|rest| rest.get(64..)) {
            let zeros = [b'0'; 64];
            let digest = blake3::hash(&[KEY, &zeros, rest].concat()).to_hex();
            let _ = fs::remove_file(&path);
            write(&path, &[KEY, digest.as_bytes(), rest].concat());
            if let Ok(checkpoint) = Checkpoint::open(dir) {
                drop(checkpoint.verify());
            }
        }
    });
}

/// Parses the manifest of a package of a Python dataset.
pub fn python_package(bytes: &[u8]) {
    let Ok(package) = millrace_data::PythonPackage::parse(std::path::Path::new("train"), bytes) else { return };
    assert!(package.samples() > 0 && package.workers() > 0 && !package.inputs().is_empty());
}

/// Opens a file of texts on JSON lines. Its tokens are bytes.
pub fn json_lines(bytes: &[u8]) {
    text_file("texts.jsonl", bytes);
}

/// Opens a Parquet file with texts. Its tokens are bytes.
pub fn parquet(bytes: &[u8]) {
    text_file("texts.parquet", bytes);
}

/// Opens a compressed text. Its tokens are bytes.
pub fn compressed(bytes: &[u8]) {
    text_file(if bytes.starts_with(b"\x1f") { "text.gz" } else { "text.zst" }, bytes);
}

/// Opens a file of text.
fn text_file(name: &str, bytes: &[u8]) {
    with_dir(name, |dir| {
        let path = dir.join(name);
        write(&path, bytes);
        let spec = SourceSpec {
            cache_dir: Some(dir.join("cache")),
            ..SourceSpec::new(
                SourceKind::Text(TextFiles::new(vec![path.display().to_string()], TokenizerName::Bytes)),
                4,
            )
        };
        if let Ok(dataset) = Dataset::open(&spec, |done, total| assert!(done <= total)) {
            assert!(dataset.windows() > 0 && dataset.max_token() < 256);
        }
        // Otherwise each input leaves its tokens.
        drop(fs::remove_dir_all(dir.join("cache")));
    });
}

/// Reads a file `tokenizer.json`, and encodes and decodes a text.
pub fn tokenizer(bytes: &[u8]) {
    with_dir("tokenizer", |dir| {
        let path = dir.join("tokenizer.json");
        write(&path, bytes);
        let Ok(tokenizer) = Tokenizer::open(TokenizerName::File, Some(&path)) else { return };
        assert!(tokenizer.separator() < tokenizer.vocab_size());
        for text in ["", "In the beginning, it's 2024:  caf\u{e9} \u{4e2d}\r\n\t</s> [SEP]", "\0\u{fffd}\u{10ffff}"] {
            let Ok(tokens) = tokenizer.encode(text) else { continue };
            assert!(tokens.iter().all(|token| *token < tokenizer.vocab_size()));
            assert_eq!(tokenizer.encode(text).ok(), Some(tokens.clone()));
            let mut decoder = TextDecoder::new(&tokenizer, &tokens);
            tokens.iter().for_each(|token| drop(decoder.push(*token)));
            decoder.finish();
        }
    });
}

/// Opens a token file as both parts of a split, and reads samples of it. Opens a NumPy file as samples, too.
pub fn tokens(bytes: &[u8]) {
    with_dir("tokens", |dir| {
        let path = dir.join(if bytes.starts_with(b"\x93NUMPY") { "tokens.npy" } else { "tokens.bin" });
        write(&path, bytes);
        let paths = vec![path.display().to_string()];
        for split in [SplitPart::Train, SplitPart::Validation] {
            let spec = SourceSpec {
                split,
                validation_fraction: 0.25,
                shuffle: true,
                shuffle_seed: 7,
                ..SourceSpec::new(SourceKind::Tokens { paths: paths.clone(), token_type: TokenType::Uint16 }, 4)
            };
            let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { continue };
            let (mut input_ids, mut labels) = ([0; 4], [0; 4]);
            for sample in [0, 1, dataset.windows(), u64::MAX] {
                dataset.sample(sample, &mut input_ids, &mut labels).expect("token files have no errors of samples");
                assert!(
                    input_ids.iter().all(|&token| u32::try_from(token).is_ok_and(|token| token <= dataset.max_token()))
                );
            }
        }
        let spec = SourceSpec::new(SourceKind::Arrays { paths: vec![dir.display().to_string()] }, 1);
        let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { return };
        let bytes = dataset.inputs()[0].bytes();
        for sample in [0, 1, dataset.windows(), u64::MAX] {
            // An integer with more than 32 bits is an error.
            if let Ok(arrays) = dataset.read(sample, 1) {
                assert_eq!(arrays[0].len(), bytes);
            }
        }
    });
}

/// Opens an HDF5 file and reads samples of it.
pub fn hdf5(bytes: &[u8]) {
    const LENGTH: usize = 16;
    with_dir("hdf5", |dir| {
        let path = dir.join("data.h5");
        write(&path, bytes);
        let spec = SourceSpec {
            shuffle: true,
            shuffle_seed: 7,
            ..SourceSpec::new(
                SourceKind::Hdf5 { paths: vec![path.display().to_string()], mixture: Vec::new(), vocab_size: 64 },
                LENGTH,
            )
        };
        let packed = SourceSpec { is_packed: true, ..spec.clone() };
        if let Ok(dataset) = Dataset::open(&packed, |_, _| ()) {
            for sample in [0, 1, dataset.windows(), u64::MAX] {
                if let Ok(arrays) = dataset.read(sample, 1) {
                    assert_eq!(arrays.len(), 4);
                }
            }
        }
        let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { return };
        let (mut input_ids, mut labels) = ([0; LENGTH], [0; LENGTH]);
        for sample in [0, 1, dataset.windows(), u64::MAX] {
            if dataset.sample(sample, &mut input_ids, &mut labels).is_ok() {
                assert!(input_ids.iter().all(|token| (0..64).contains(token)));
                assert!(labels.iter().all(|label| (-1..64).contains(label)));
            }
        }
    });
}

/// Opens a CSV file as rows of each kind, and reads samples of it.
pub fn csv(bytes: &[u8]) {
    const LENGTH: usize = 16;
    const WORDS: &[u8] = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n";
    let tokens = EncoderLabels::Tokens { max_predictions: Some(4), predicts_next_sentence: true };
    let masking = Some(Masking { probability: 0.2, whole_words: true });
    let kinds = [
        (CsvRows::Words, tokens, masking),
        (CsvRows::Masked, tokens, None),
        (CsvRows::SentencePairs, EncoderLabels::Class { classes: 3 }, None),
        (CsvRows::TokenClasses, EncoderLabels::TokenClasses { classes: 2, counts_padding: false }, None),
        (CsvRows::SummariesWithWords, EncoderLabels::Sentences { max_sentences: 3, has_words: true }, None),
        (CsvRows::Answers, EncoderLabels::Span, None),
    ];
    with_dir("csv", |dir| {
        let file = |name: &str, bytes: &[u8]| {
            write(&dir.join(name), bytes);
            dir.join(name).display().to_string()
        };
        let (data, classes) = (file("data.csv", bytes), file("classes.json", br#"{"O": 0, "B": 1}"#));
        let words = file("vocab.txt", WORDS);
        for (rows, task, masking) in kinds {
            let mut paths = vec![data.clone()];
            if rows == CsvRows::TokenClasses {
                paths.push(classes.clone());
            }
            if rows.has_words() {
                paths.push(words.clone());
            }
            let spec = SourceSpec {
                shuffle: true,
                shuffle_seed: 7,
                encoder: Some(EncoderSamples {
                    task,
                    has_segments: true,
                    vocab_size: 8,
                    mask_token: None,
                    masking,
                    seed: 1,
                    is_packed: false,
                }),
                ..SourceSpec::new(SourceKind::Csv { paths, rows, is_lower_case: true }, LENGTH)
            };
            let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { continue };
            for number in [0, 1, dataset.windows(), u64::MAX] {
                if let Ok(arrays) = dataset.read(number, 1) {
                    let ids = arrays[0].chunks(4).map(|id| i32::from_le_bytes(id.try_into().unwrap()));
                    assert!(ids.into_iter().all(|token| (0..8).contains(&token)));
                    assert!(dataset.inputs().iter().zip(&arrays).all(|(input, array)| input.bytes() == array.len()));
                }
            }
        }
    });
}

/// Opens a TFRecord file, and one with the bytes as its only record, as records of each kind, and reads samples.
pub fn tfrecord(bytes: &[u8]) {
    const LENGTH: usize = 16;
    let tokens = EncoderLabels::Tokens { max_predictions: Some(4), predicts_next_sentence: false };
    let encoder = |task, masking| EncoderSamples {
        task,
        has_segments: true,
        vocab_size: 64,
        mask_token: None,
        masking,
        seed: 1,
        is_packed: false,
    };
    let masking = Some(Masking { probability: 0.2, whole_words: true });
    let kinds = [
        (TfRecordRows::Tokens, None),
        (TfRecordRows::Masked, Some(encoder(tokens, None))),
        (TfRecordRows::Words, Some(encoder(tokens, masking))),
        (TfRecordRows::SentencePairs, Some(encoder(EncoderLabels::Class { classes: 3 }, None))),
        (
            TfRecordRows::TokenClasses,
            Some(encoder(EncoderLabels::TokenClasses { classes: 4, counts_padding: true }, None)),
        ),
        (
            TfRecordRows::SummariesWithWords,
            Some(encoder(EncoderLabels::Sentences { max_sentences: 3, has_words: true }, None)),
        ),
        (TfRecordRows::Answers, Some(encoder(EncoderLabels::Span, None))),
    ];
    with_dir("tfrecord", |dir| {
        write(&dir.join("vocab.txt"), b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n");
        write(&dir.join("classes.json"), br#"{"O": 0, "B": 1}"#);
        for content in [bytes.to_vec(), tfrecord_frame(bytes)] {
            write(&dir.join("data.tfrecord"), &content);
            for (rows, encoder) in kinds.clone() {
                let other = match rows {
                    TfRecordRows::TokenClasses => Some("classes.json"),
                    rows => rows.has_words().then_some("vocab.txt"),
                };
                let names = ["data.tfrecord"].into_iter().chain(other);
                let paths = names.map(|name| dir.join(name).display().to_string()).collect();
                let kind = SourceKind::TfRecords { paths, rows, is_lower_case: false, vocab_size: 64 };
                let spec = SourceSpec { encoder, ..SourceSpec::new(kind, LENGTH) };
                let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { continue };
                for number in [0, 1, dataset.windows(), u64::MAX] {
                    if let Ok(arrays) = dataset.read(number, 1) {
                        let ids = arrays[0].chunks(4).map(|id| i32::from_le_bytes(id.try_into().unwrap()));
                        assert!(ids.into_iter().all(|token| (0..64).contains(&token)));
                    }
                }
            }
        }
    });
}

/// Opens the bytes as an idx file of images, and as an image of a class, and reads samples.
pub fn images(bytes: &[u8]) {
    const LABELS: [u8; 10] = [0, 0, 8, 1, 0, 0, 0, 2, 0, 1];
    with_dir("images", |dir| {
        fs::create_dir_all(dir.join("folder/a")).expect("a directory");
        write(&dir.join("train-images-idx3-ubyte"), bytes);
        write(&dir.join("train-labels-idx1-ubyte"), &LABELS);
        write(&dir.join("folder/a/x.png"), bytes);
        let shape = ImageShape { channels: 3, height: 4, width: 5 };
        let crop = ImageTransform::RandomResizedCrop { size: [4, 5], scale: [0.1, 1.0], ratio: [0.5, 2.0] };
        for (format, path) in [(ImageFormat::Idx, dir.to_owned()), (ImageFormat::Folder, dir.join("folder"))] {
            let images =
                ImageSource { format, part: ImagePart::Train, shape, classes: 2, transforms: vec![crop.clone()] };
            let spec = SourceSpec {
                shuffle: true,
                shuffle_seed: 7,
                ..SourceSpec::new(SourceKind::Images { paths: vec![path.display().to_string()], images }, 1)
            };
            let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { continue };
            for sample in [0, 1, dataset.windows(), u64::MAX - 1] {
                if let Ok(arrays) = dataset.read(sample, 1) {
                    assert_eq!((arrays[0].len(), arrays[1].len()), (4 * shape.elements(), 4));
                }
            }
        }
    });
}
