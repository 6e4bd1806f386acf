//! Tests HDF5 files in the formats of the public model zoo, which tests/fixtures/write.py wrote with h5py.

use std::path::{Path, PathBuf};

use millrace_data::{
    DataError, Dataset, Hdf5Problem, MixturePart, SampleProblem, SourceKind, SourceSpec, SplitPart, TokenType, inspect,
    stored_sample_length, write_hdf5,
};

const T: usize = 16;
/// Tokens in the stream of the fixtures.
const TOKENS: usize = 1000;

/// Token `index` of the stream, as in write.py.
fn token(index: usize) -> i32 {
    ((index * 7 + index * index % 13 + index / 64) % 64) as i32
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn spec(paths: &[PathBuf]) -> SourceSpec {
    let paths = paths.iter().map(|path| path.display().to_string()).collect();
    SourceSpec {
        shuffle_seed: 1,
        ..SourceSpec::new(SourceKind::Hdf5 { paths, mixture: Vec::new(), vocab_size: 64 }, T)
    }
}

fn fixtures(names: &[&str]) -> SourceSpec {
    spec(&names.iter().map(|name| fixture(name)).collect::<Vec<_>>())
}

fn with_vocabulary(spec: SourceSpec, size: u32) -> SourceSpec {
    let SourceKind::Hdf5 { paths, mixture, .. } = spec.kind else { panic!("not HDF5") };
    SourceSpec { kind: SourceKind::Hdf5 { paths, mixture, vocab_size: size }, ..spec }
}

fn open(spec: &SourceSpec) -> Dataset {
    Dataset::open(spec, |_, _| {}).unwrap()
}

fn sample(dataset: &Dataset, n: u64) -> (Vec<i32>, Vec<i32>) {
    let (mut ids, mut labels) = (vec![-1; dataset.seq_len()], vec![-1; dataset.seq_len()]);
    dataset.sample(n, &mut ids, &mut labels).unwrap();
    (ids, labels)
}

/// Window `w` of the stream.
fn window(w: usize) -> (Vec<i32>, Vec<i32>) {
    let tokens = |first: usize| (first..first + T).map(token).collect();
    (tokens(w * T), tokens(w * T + 1))
}

#[test]
fn both_formats_have_the_samples_of_a_token_file() {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..TOKENS).flat_map(|index| (token(index) as u16).to_le_bytes()).collect();
    std::fs::write(dir.path().join("stream.bin"), bytes).unwrap();
    let paths = vec![dir.path().join("stream.bin").display().to_string()];
    for shuffle in [false, true] {
        let tokens = open(&SourceSpec {
            kind: SourceKind::Tokens { paths: paths.clone(), token_type: TokenType::Uint16 },
            shuffle,
            ..fixtures(&[])
        });
        for format in ["samples", "corpus"] {
            let found = SourceSpec { shuffle, ..fixtures(&[format]) };
            let dataset = open(&found);
            assert_eq!(dataset.windows(), tokens.windows());
            for n in [0, 1, 19, 20, 21, 61, 62, 63, 1000, 1 << 40] {
                assert_eq!(sample(&dataset, n), sample(&tokens, n), "{format}, sample {n}");
            }
            assert_eq!(inspect(&found).and_then(|summary| summary.epoch_samples(&found)).unwrap(), Some(62));
        }
    }
    for w in [0, 20, 61] {
        assert_eq!(sample(&open(&fixtures(&["samples"])), w as u64), window(w));
    }
    assert_eq!(
        (stored_sample_length(&fixtures(&["samples"])), stored_sample_length(&fixtures(&["corpus"]))),
        (Some(T), None)
    );
}

#[test]
fn later_layouts_and_all_token_types_are_read() {
    let latest = open(&fixtures(&["latest.h5"]));
    assert_eq!(latest.windows(), 5);
    for w in 0..5 {
        assert_eq!(sample(&latest, w as u64), window(w));
    }
    for (name, values) in [("uint16.h5", [0, 256, 65_535]), ("uint32.h5", [0, 65_536, 128_255])] {
        let dataset = open(&with_vocabulary(fixtures(&[name]), 128_256));
        let (ids, labels) = sample(&dataset, 1);
        let expected = |first: usize| (first..first + T).map(|index| values[index % 3]).collect::<Vec<i32>>();
        assert_eq!((ids, labels), (expected(T), expected(T + 1)), "{name}");
    }
}

#[test]
fn masked_labels_do_not_count() {
    let dataset = open(&fixtures(&["masked.h5"]));
    for n in 0..3 {
        let (ids, labels) = sample(&dataset, n as u64);
        let (expected_ids, all_labels) = window(n);
        let expected: Vec<i32> =
            all_labels.iter().enumerate().map(|(index, label)| if index % 4 == n { -1 } else { *label }).collect();
        assert_eq!((ids, labels), (expected_ids, expected));
    }
}

#[test]
fn splits_and_subsets_select_samples() {
    let numbers = |spec: &SourceSpec| -> Vec<usize> {
        let dataset = open(spec);
        let window_of = |n| (0..62).find(|w| window(*w) == sample(&dataset, n)).unwrap();
        (0..dataset.windows()).map(window_of).collect()
    };
    let all = SourceSpec { validation_fraction: 0.25, ..fixtures(&["samples"]) };
    assert_eq!(numbers(&all), (0..47).collect::<Vec<_>>());
    assert_eq!(numbers(&SourceSpec { split: SplitPart::Validation, ..all.clone() }), (47..62).collect::<Vec<_>>());
    let halves = SourceSpec { subset: vec![[0.0, 0.25], [0.5, 0.75]], ..fixtures(&["samples"]) };
    assert_eq!(numbers(&halves), (0..15).chain(31..46).collect::<Vec<_>>());
    assert_eq!(numbers(&SourceSpec { num_samples: Some(5), ..halves.clone() }), (0..5).collect::<Vec<_>>());
    assert_eq!(open(&SourceSpec { num_samples: Some(500), ..halves }).windows(), 500);
}

#[test]
fn mixture_reads_sources_by_weight() {
    let paths = ["samples/part_0.h5", "samples/part_1.h5", "latest.h5"].map(|name| fixture(name).display().to_string());
    let mixture = vec![MixturePart { paths: 2, weight: 7500 }, MixturePart { paths: 1, weight: 2500 }];
    let kind = SourceKind::Hdf5 { paths: paths.to_vec(), mixture, vocab_size: 64 };
    let spec = SourceSpec { kind, ..fixtures(&[]) };
    let (dataset, latest) = (open(&spec), open(&fixtures(&["latest.h5"])));
    // Every fourth sample is one of the five of the second source, which is exhausted first.
    assert_eq!(dataset.windows(), 22);
    let mut numbers = [0, 0];
    for n in 0..100 {
        let from_second = n % 4 == 2;
        let expected = if from_second { sample(&latest, numbers[1]) } else { window(numbers[0] as usize % 62) };
        numbers[usize::from(from_second)] += 1;
        assert_eq!(sample(&dataset, n), expected, "sample {n}");
    }
    assert_eq!(open(&SourceSpec { num_samples: Some(7), ..spec.clone() }).windows(), 7);
    assert_ne!(open(&SourceSpec { num_samples: Some(7), ..spec.clone() }).fingerprint(), dataset.fingerprint());
}

#[test]
fn unusable_files_are_rejected_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.path().join(name), bytes).unwrap();
        spec(&[dir.path().join(name)])
    };
    std::fs::create_dir(dir.path().join("nothing")).unwrap();
    let file = std::fs::read(fixture("samples/part_1.h5")).unwrap();
    let damaged = |name: &str| fixtures(&[&format!("bad/{name}.h5")]);
    let cases = [
        (damaged("float"), "bad/float.h5 has a dataset \"data\" of float32; expected samples of int32"),
        (damaged("int64"), "of int64; expected samples of int32"),
        (damaged("signed_corpus"), "of int16; expected a corpus of uint8, uint16 or uint32"),
        (damaged("rank"), "of shape [2, 16]; expected (samples, 3, length) or (tokens)"),
        (damaged("packed"), "has samples of packed sequences (5 rows), but use_vsl is not set"),
        (damaged("name"), "has no dataset \"data\"; it has \"tokens\""),
        (damaged("group"), "has a group \"data\""),
        (damaged("lzf"), "sample 0 of |bad/lzf.h5: it can't be read: unsupported filter"),
        (damaged("none"), "the training split has no sample"),
        (write("half.h5", &file[..file.len() / 2]), "half.h5 is truncated: it has 5056 bytes of the 10112"),
        (write("header.h5", &file[..100]), "header.h5 is truncated"),
        (
            write("text.h5", b"text that is long enough to be one"),
            "text.h5 is of another format; expected an HDF5 file",
        ),
        (write("parquet.h5", b"PAR1 and more"), "parquet.h5 is a Parquet file; expected an HDF5 file"),
        (write("empty.h5", b""), "empty.h5 is empty; expected an HDF5 file"),
        (spec(&[dir.path().join("nothing")]), "nothing holds no .h5 file"),
        (spec(&[dir.path().join("gone")]), "gone does not exist"),
        (
            fixtures(&["samples", "corpus"]),
            "corpus/part_0.h5 contains a corpus, but the files before it contain samples",
        ),
        (SourceSpec { seq_len: 8, ..fixtures(&["samples"]) }, "has samples of 16 tokens, but max_sequence_length is 8"),
        (SourceSpec { seq_len: 2000, ..fixtures(&["corpus"]) }, "training split has 1000 tokens"),
        (SourceSpec { subset: vec![[0.0, 0.001]], ..fixtures(&["samples"]) }, "no sample in data_subset"),
    ];
    for (spec, expected) in cases {
        let error = Dataset::open(&spec, |_, _| {}).err().expect(expected);
        let message = error.to_string();
        assert!(expected.split('|').all(|part| message.contains(part)), "{message:?}, not {expected:?}");
        assert!(!error.hint().is_empty() && !message.contains('\n'), "{message}");
        assert_eq!(inspect(&spec).err().map(|error| error.to_string()), Some(message), "{expected}");
    }
}

#[test]
fn bad_values_are_reported_with_file_and_sample() {
    for (name, expected) in [
        ("token", "token 64 is outside the vocabulary of 64"),
        ("label", "label -2 is outside the vocabulary of 64"),
        ("mask", "a loss mask has the value 2; expected 0 or 1"),
    ] {
        let dataset = open(&fixtures(&[&format!("bad/{name}.h5")]));
        let (mut ids, mut labels) = ([0; T], [0; T]);
        dataset.sample(3, &mut ids, &mut labels).unwrap();
        let error = dataset.sample(4, &mut ids, &mut labels).unwrap_err();
        assert!(matches!(error, DataError::BadSample { number: 4, .. }));
        let message = error.to_string();
        assert!(
            message.starts_with("sample 4 of ") && message.contains(&format!("bad/{name}.h5: {expected}")),
            "{message}"
        );
    }
    let error = Dataset::open(&with_vocabulary(fixtures(&["uint32.h5"]), 65_536), |_, _| {}).err().unwrap();
    assert!(error.to_string().starts_with("token 1 of "), "{error}");
    let problem = |error| match error {
        DataError::BadSample { problem: SampleProblem::TokenOutsideVocabulary { token, .. }, .. } => token,
        error => panic!("{error}"),
    };
    assert_eq!(problem(error), 65_536);
}

/// Damages each byte of a file's headers, and single bytes of the rest.
#[test]
fn damaged_files_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged.h5");
    let mut rejected = 0;
    for name in ["samples/part_0.h5", "corpus/part_0.h5", "latest.h5"] {
        let original = std::fs::read(fixture(name)).unwrap();
        for offset in (0..original.len()).filter(|offset| *offset < 300 || offset % 97 == 0) {
            let mut bytes = original.clone();
            bytes[offset] ^= 0xff;
            std::fs::write(&path, bytes).unwrap();
            match Dataset::open(&spec(std::slice::from_ref(&path)), |_, _| {}) {
                Err(DataError::Hdf5 { problem: Hdf5Problem::Damaged(_), .. }) => rejected += 1,
                Err(_) => {}
                Ok(dataset) => {
                    let (mut ids, mut labels) = ([0; T], [0; T]);
                    (0..dataset.windows().min(20)).for_each(|n| drop(dataset.sample(n, &mut ids, &mut labels)));
                }
            }
        }
    }
    assert!(rejected > 50, "{rejected}");
}

/// A file that is written from a dataset contains its samples, with the labels that do not count.
#[test]
fn written_files_have_the_samples_of_the_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let masked = open(&fixtures(&["masked.h5"]));
    let paths = [dir.path().join("output_chunk_0.h5"), dir.path().join("output_chunk_1.h5")];
    let samples = masked.windows();
    write_hdf5(&masked, 0..2, &paths[0]).unwrap();
    write_hdf5(&masked, 2..samples, &paths[1]).unwrap();
    let written = open(&spec(&paths));
    assert_eq!(written.windows(), samples);
    let all = |dataset: &Dataset| (0..samples).map(|n| sample(dataset, n)).collect::<Vec<_>>();
    assert_eq!(all(&written), all(&masked));
    assert!(all(&written).iter().any(|(_, labels)| labels.contains(&-1)), "labels that do not count");
    let error = write_hdf5(&masked, 0..1, &paths[0]).unwrap_err();
    assert!(matches!(error, DataError::Write { .. }), "an existing file is kept: {error}");
}

/// Samples of two sequences, of 5 + s and 11 - s tokens.
#[test]
fn packed_samples_say_where_their_sequences_are() {
    let packed = |name: &str| SourceSpec { is_packed: true, ..fixtures(&[name]) };
    let dataset = open(&packed("packed.h5"));
    let names: Vec<String> = dataset.inputs().into_iter().map(|input| input.name).collect();
    assert_eq!(names, ["input_ids", "labels", "attention_span", "position_ids"]);
    for sample in 0..3 {
        let integers = |bytes: Vec<u8>| -> Vec<i32> {
            bytes.chunks(4).map(|chunk| i32::from_le_bytes(chunk.try_into().unwrap())).collect()
        };
        let arrays: Vec<Vec<i32>> = dataset.read(sample, 1).unwrap().into_iter().map(integers).collect();
        let (input_ids, labels) = window(sample as usize);
        let lengths = [5 + sample as i32, 11 - sample as i32];
        let spans = lengths.into_iter().flat_map(|length| (0..length).rev()).collect();
        let positions = lengths.into_iter().flat_map(|length| 0..length).collect();
        assert_eq!(arrays, [input_ids, labels, spans, positions]);
    }
    assert_eq!(stored_sample_length(&packed("packed.h5")), Some(T));
    // A mixture with itself.
    let paths = vec![fixture("packed.h5").display().to_string(); 2];
    let part = |weight| MixturePart { paths: 1, weight };
    let kind = SourceKind::Hdf5 { paths, mixture: vec![part(1), part(1)], vocab_size: 64 };
    let mixture = open(&SourceSpec { kind, ..packed("packed.h5") });
    assert_eq!((mixture.windows(), mixture.read(1, 1).unwrap()), (6, dataset.read(0, 1).unwrap()));

    let open_error = |spec: &SourceSpec| Dataset::open(spec, |_, _| {}).err().unwrap().to_string();
    let error = open_error(&packed("bad/packed.h5"));
    assert!(error.ends_with("the position of token 0 is -1, which is not from 0 to 15"), "{error}");
    assert!(open_error(&packed("samples")).contains("contains samples, but use_vsl is set"));
    assert!(open_error(&packed("corpus")).contains("contains a corpus, but use_vsl is set"));
    assert!(open_error(&fixtures(&["packed.h5"])).contains("5 rows), but use_vsl is not set"));
}
