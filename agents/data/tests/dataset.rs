//! Tests the guarantees of data sets through the public interface: splits, samples, orders, errors and exported
//! samples.

use std::collections::HashMap;
use std::path::Path;

use millrace_data::{
    CacheOutcome, DataError, Dataset, SourceKind, SourceSpec, SplitPart, TextFiles, TokenType, TokenizerName,
    write_samples,
};

const T: usize = 8;

/// A text source of byte tokens over `paths`, in `dir` and cached below it.
fn spec(dir: &Path, paths: &[&str]) -> SourceSpec {
    let paths = paths.iter().map(|p| format!("{}/{p}", dir.display())).collect();
    SourceSpec {
        validation_fraction: 0.25,
        shuffle: true,
        shuffle_seed: 1,
        cache_dir: Some(dir.join("cache")),
        ..SourceSpec::new(SourceKind::Text(TextFiles::new(paths, TokenizerName::Bytes)), T)
    }
}

fn open(spec: &SourceSpec) -> Dataset {
    Dataset::open(spec, |_, _| {}).unwrap()
}

fn sample(dataset: &Dataset, n: u64) -> (Vec<i32>, Vec<i32>) {
    let (mut ids, mut labels) = (vec![-1; dataset.seq_len()], vec![-1; dataset.seq_len()]);
    dataset.sample(n, &mut ids, &mut labels).unwrap();
    (ids, labels)
}

/// 1003 tokens, each 17 times the previous one modulo 65,521: all are different, so a token identifies its position.
fn token_file(dir: &Path) -> SourceSpec {
    let tokens: Vec<u16> =
        std::iter::successors(Some(1u64), |t| Some(t * 17 % 65_521)).take(1003).map(|t| t as u16).collect();
    std::fs::write(dir.join("a.bin"), tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let paths = vec![format!("{}/a.bin", dir.display())];
    SourceSpec { kind: SourceKind::Tokens { paths, token_type: TokenType::Uint16 }, ..spec(dir, &[]) }
}

#[test]
fn epoch_has_every_window_once_and_splits_are_disjoint() {
    let dir = tempfile::tempdir().unwrap();
    let train = token_file(dir.path());
    let position: HashMap<i32, usize> =
        std::iter::successors(Some(1u64), |t| Some(t * 17 % 65_521)).take(1003).map(|t| t as i32).zip(0..).collect();
    assert_eq!(position.len(), 1003);
    let validation = SourceSpec { split: SplitPart::Validation, ..train.clone() };
    // A quarter of 1003, rounded down, is 250 tokens: 31 windows. 753 are left: 94 windows.
    for (spec, tokens, windows) in [(&train, 0..753, 94), (&validation, 753..1003, 31)] {
        let dataset = open(spec);
        assert_eq!(dataset.windows(), windows);
        let mut orders = Vec::new();
        for pass in 0..3 {
            let mut starts = Vec::new();
            for i in 0..windows {
                let (ids, labels) = sample(&dataset, pass * windows + i);
                let start = position[&ids[0]];
                for (k, (id, label)) in ids.iter().zip(&labels).enumerate() {
                    assert_eq!((position[id], position[label]), (start + k, start + k + 1));
                    assert!(tokens.contains(&(start + k)) && tokens.contains(&(start + k + 1)));
                }
                starts.push(start);
            }
            orders.push(starts.clone());
            starts.sort_unstable();
            assert!(starts.iter().copied().eq((0..windows as usize).map(|w| tokens.start + w * T)));
        }
        let in_order = orders.iter().filter(|o| o.is_sorted()).count();
        // Training has another order in every pass; validation, even with shuffling enabled, always has that of the
        // text.
        assert_eq!(in_order, if spec.split == SplitPart::Train { 0 } else { 3 });
        assert_eq!(orders[0] == orders[1], spec.split == SplitPart::Validation);
    }
}

#[test]
fn samples_are_a_function_of_the_spec_and_the_number() {
    let dir = tempfile::tempdir().unwrap();
    let first = token_file(dir.path());
    let synthetic = SourceSpec { kind: SourceKind::Synthetic { vocab_size: 300, seed: 4 }, ..first.clone() };
    for spec in [&first, &synthetic] {
        let (one, other) = (open(spec), open(spec));
        assert_eq!(one.fingerprint(), other.fingerprint());
        let numbers = [0, 1, 93, 94, 95, 10_000, 1 << 40, u64::MAX];
        let forwards: Vec<_> = numbers.iter().map(|&n| sample(&one, n)).collect();
        let mut backwards: Vec<_> = numbers.iter().rev().map(|&n| sample(&other, n)).collect();
        backwards.reverse();
        assert_eq!(forwards, backwards);
        for (ids, labels) in forwards {
            assert_eq!(ids[1..], labels[..T - 1]);
        }
    }
    // Everything that changes the samples changes the fingerprint.
    let changed = [
        SourceSpec { seq_len: 9, ..first.clone() },
        SourceSpec { split: SplitPart::Validation, ..first.clone() },
        SourceSpec { validation_fraction: 0.5, ..first.clone() },
        SourceSpec { shuffle: false, ..first.clone() },
        SourceSpec { shuffle_seed: 2, ..first.clone() },
        SourceSpec { kind: SourceKind::Synthetic { vocab_size: 301, seed: 4 }, ..first.clone() },
        SourceSpec { kind: SourceKind::Synthetic { vocab_size: 300, seed: 5 }, ..first.clone() },
        synthetic,
    ];
    let mut prints = vec![open(&first).fingerprint()];
    prints.extend(changed.iter().map(|spec| open(spec).fingerprint()));
    prints.sort_unstable();
    prints.dedup();
    assert_eq!(prints.len(), changed.len() + 1);
}

#[test]
fn text_is_tokenized_once_for_any_path() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("texts")).unwrap();
    for (name, text) in
        [("texts/b.txt", "second document"), ("texts/a.txt", "the first document, "), ("c.txt", "third")]
    {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let all = SourceSpec { validation_fraction: 0.0, shuffle: false, ..spec(dir.path(), &["texts/*.txt", "c.txt"]) };
    let mut progress = Vec::new();
    let dataset = Dataset::open(&all, |done, total| progress.push((done, total))).unwrap();
    assert_eq!(dataset.cache(), &CacheOutcome::Built);
    assert_eq!((progress[0], progress[progress.len() - 1]), ((0, 40), (40, 40)));
    let text: Vec<i32> = "the first document, \0second document\0third".bytes().map(i32::from).collect();
    assert_eq!(dataset.windows(), (text.len() as u64 - 1) / T as u64);
    for n in 0..dataset.windows() {
        let start = n as usize * T;
        assert_eq!(sample(&dataset, n), (text[start..start + T].to_vec(), text[start + 1..start + T + 1].to_vec()));
    }

    // The other split, and the same texts under other names, are read from the cache; another text is not.
    let validation = SourceSpec { split: SplitPart::Validation, validation_fraction: 0.5, ..all.clone() };
    assert_eq!(open(&validation).cache(), &CacheOutcome::Hit);
    std::fs::rename(dir.path().join("c.txt"), dir.path().join("texts/d.txt")).unwrap();
    let moved = open(&SourceSpec { kind: spec(dir.path(), &["texts"]).kind, ..all.clone() });
    assert_eq!((moved.cache(), moved.fingerprint()), (&CacheOutcome::Hit, dataset.fingerprint()));
    std::fs::write(dir.path().join("c.txt"), "fourth").unwrap();
    let other = open(&all);
    assert_eq!(other.cache(), &CacheOutcome::Built);
    assert_ne!(other.fingerprint(), dataset.fingerprint());
}

#[test]
fn bad_input_is_refused_in_a_sentence_with_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("empty.txt", b"");
    write("short.txt", b"12345678");
    write("latin1.txt", b"caf\xe9 au lait");
    write("odd.bin", b"123");
    write("none.bin", b"");
    write("fine.txt", &[b'x'; 100]);
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    let text = |paths: &[&str]| spec(dir.path(), paths);
    let tokens = |name: &str| {
        let paths = vec![format!("{}/{name}", dir.path().display())];
        SourceSpec { kind: SourceKind::Tokens { paths, token_type: TokenType::Uint16 }, ..text(&[]) }
    };
    let relative = |path: &str| {
        let paths = vec![path.to_owned()];
        SourceSpec { kind: SourceKind::Text(TextFiles::new(paths, TokenizerName::Bytes)), ..text(&[]) }
    };
    let synthetic = |vocab_size| SourceSpec { kind: SourceKind::Synthetic { vocab_size, seed: 0 }, ..text(&[]) };
    let valid = text(&["fine.txt"]);
    let cwd = std::env::current_dir().unwrap().display().to_string();
    let null = SourceSpec {
        kind: SourceKind::Tokens { paths: vec!["/dev/null".into()], token_type: TokenType::Uint16 },
        ..text(&[])
    };
    let all_of = |name| SourceSpec { validation_fraction: 0.0, ..text(&[name]) };
    let validation = |validation_fraction, spec: SourceSpec| SourceSpec {
        split: SplitPart::Validation,
        validation_fraction,
        ..spec
    };
    // The request, and the expected parts of the message.
    let cases = [
        (text(&[]), "names no files"),
        (text(&["fine.txt", "missing.txt"]), "missing.txt does not exist"),
        (relative("nowhere/missing.txt"), "nowhere/missing.txt does not exist (relative to CWD)"),
        (relative("nowhere/*.text"), "nowhere/*.text|matches no file (relative to CWD)"),
        (text(&["fine.txt/inside"]), "fine.txt/inside does not exist"),
        (text(&["*.text"]), "*.text|matches no file"),
        (text(&["a***"]), "a***|not a valid glob"),
        (text(&["folder"]), "folder holds no .txt file"),
        (tokens("folder"), "folder holds no .bin file"),
        (null, "/dev/null is not a regular file"),
        (text(&["empty.txt"]), "is empty|empty.txt"),
        (tokens("none.bin"), "is empty|none.bin"),
        (text(&["short.txt"]), "training split has 6 tokens|9"),
        (all_of("short.txt"), "training split has 8 tokens|9"),
        (validation(0.05, valid.clone()), "validation split has 5 tokens"),
        (validation(0.0, synthetic(9)), "validation split has 0 tokens"),
        (text(&["latin1.txt"]), "latin1.txt is not valid UTF-8 at byte 3"),
        (tokens("odd.bin"), "odd.bin|has 3 bytes, but a token takes 2"),
        (SourceSpec { seq_len: 0, ..valid.clone() }, "sequence length of 0"),
        (SourceSpec { validation_fraction: f64::NAN, ..valid.clone() }, "fraction NaN"),
        (SourceSpec { validation_fraction: 1.5, ..valid.clone() }, "fraction 1.5"),
        (synthetic(1), "vocabulary of 1"),
    ];
    let mut errors =
        Vec::from(cases.map(|(spec, expected)| (Dataset::open(&spec, |_, _| {}).err().expect(expected), expected)));
    errors.push((open(&valid).check_vocab(120).unwrap_err(), "vocabulary of 120|largest token is 120"));
    for (error, expected) in errors {
        let message = error.to_string();
        assert!(
            expected.replace("CWD", &cwd).split('|').all(|part| message.contains(part)),
            "{message:?}, not {expected:?}"
        );
        assert!(!error.hint().is_empty() && error.is_bad_input(), "{message}");
    }
    open(&valid).check_vocab(121).unwrap();

    // Caused by the machine, not by the input.
    let cache_dir = Some(dir.path().join("fine.txt/cache"));
    let error = Dataset::open(&SourceSpec { cache_dir, ..valid.clone() }, |_, _| {}).err().unwrap();
    assert!(error.to_string().contains("fine.txt/cache") && !error.is_bad_input(), "{error}");
    let error = write_samples(&open(&valid), 1, 1, 0, &dir.path().join("folder/none/out")).unwrap_err();
    assert!(error.to_string().contains("folder/none/out") && !error.is_bad_input(), "{error}");
}

#[test]
fn written_samples_are_those_the_model_will_see() {
    let dir = tempfile::tempdir().unwrap();
    let dataset = open(&token_file(dir.path()));
    let path = dir.path().join("samples.safetensors");
    std::fs::write(&path, "an older file").unwrap();
    let (batch, steps, first) = (3, 40, 7);
    write_samples(&dataset, batch, steps, first, &path).unwrap();

    let bytes = std::fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |name| {
        let tensor = file.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::I32, &[40, 3, T][..]));
        tensor.data().chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<i32>>()
    };
    let (ids, labels) = (tensor("input_ids"), tensor("labels"));
    for i in 0..(batch * steps) as usize {
        let expected = sample(&dataset, first + i as u64);
        assert_eq!((ids[i * T..][..T].to_vec(), labels[i * T..][..T].to_vec()), expected, "sample {i}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing unfinished is left");

    let error = write_samples(&dataset, u64::MAX, 2, 0, &path).unwrap_err();
    assert!(matches!(error, DataError::FileTooLarge { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "a refused request leaves the file alone");
}
