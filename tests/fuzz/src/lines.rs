//! Target for files of lines of words, their lists and vocabularies.

use std::fs;

use millrace_data::{Dataset, LineFiles, LineRows, Seq2SeqSamples, SourceKind, SourceSpec};
use tempfile::TempDir;

const WORDS: &[u8] = b"<pad>\n</s>\n<unk>\nthe\nword\n";
const VOCABULARY: u32 = 8;

/// Opens the bytes as lines and as translations, as a list of files, and as a vocabulary, and reads samples.
pub fn lines(bytes: &[u8]) {
    let dir = TempDir::new().expect("a temporary directory");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(dir.path().join(name), bytes).expect("a file");
        dir.path().join(name).display().to_string()
    };
    let (text, words, other) = (write("text", bytes), write("words", WORDS), write("other", b"the\nword the\n"));
    let list = dir.path().join("list");
    fs::create_dir(&list).expect("a directory");
    fs::write(list.join("meta.dat"), bytes).expect("a file");
    fs::write(list.join("a"), b"the word\n").expect("a file");
    let list = list.display().to_string();
    for (rows, paths, targets) in [
        (LineRows::Spans, vec![text.clone(), words.clone()], 0),
        (LineRows::Pairs, vec![text.clone(), other.clone(), words.clone()], 1),
        (LineRows::Spans, vec![list.clone(), words.clone()], 0),
        (LineRows::Pairs, vec![list, words], 0),
        (LineRows::Spans, vec![other, text], 0),
    ] {
        let files = LineFiles { paths, rows, targets, vocabularies: 1, is_lower_case: true };
        let spec = SourceSpec {
            shuffle: true,
            shuffle_seed: 7,
            seq2seq: Some(Seq2SeqSamples {
                target_length: 5,
                vocab_size: VOCABULARY,
                target_vocab_size: VOCABULARY,
                seed: 1,
            }),
            ..SourceSpec::new(SourceKind::Lines(files), 6)
        };
        let Ok(dataset) = Dataset::open(&spec, |_, _| ()) else { continue };
        for number in [0, 1, dataset.windows(), u64::MAX] {
            let arrays = dataset.read(number, 1).expect("lines were checked when they were opened");
            let ids = arrays[0].chunks(4).map(|id| i32::from_le_bytes(id.try_into().unwrap()));
            assert!(ids.into_iter().all(|token| (0..VOCABULARY as i32).contains(&token)));
            assert!(dataset.inputs().iter().zip(&arrays).all(|(input, array)| input.bytes() == array.len()));
        }
    }
}
