use super::*;
use crate::permute::splitmix64;

fn tokens(paths: &[PathBuf], tokenizer: Tokenizer) -> Result<Vec<u32>, DataError> {
    let mut tokens = Vec::new();
    let corpus = Corpus::open(paths, tokenizer, DEFAULT_TEXT_KEY)?;
    let mut reports = Vec::new();
    corpus.tokenise(&mut |done, total| reports.push((done, total)), &mut |t| {
        tokens.extend_from_slice(t);
        Ok(())
    })?;
    let total = corpus.documents.iter().map(|d| d.bytes).sum();
    assert_eq!((reports.first(), reports.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(reports.is_sorted());
    Ok(tokens)
}

#[test]
fn tokens_do_not_depend_on_blocks_or_threads() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than a block, with characters of two and three bytes across every boundary, runs of white space, and a
    // stretch longer than a block without any position to cut.
    let words = ["the ", "œuvre", " 中文", "\n\n  ", "it's", " 2024", "!?"];
    let mut text: String = (0..150_000u64).map(|i| words[(splitmix64(i) % 7) as usize]).collect();
    text.insert_str(300_001, &"é".repeat(READ_BLOCK_BYTES));
    assert!(text.len() > 3 * READ_BLOCK_BYTES);
    let path = dir.path().join("long.txt");
    std::fs::write(&path, &text).unwrap();
    for tokenizer in [Tokenizer::Bytes, Tokenizer::Gpt2] {
        let expected = tokenizer.encode(&text).unwrap();
        for threads in [1, 2, 5] {
            let encoded = encode(&tokenizer, &text, threads).unwrap().concat();
            assert!(encoded == expected, "{tokenizer:?} by {threads}");
        }
        assert!(tokens(std::slice::from_ref(&path), tokenizer).unwrap() == expected);
    }
}

#[test]
fn documents_are_separated_and_empty_ones_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = ["", "Hello world", "", " the", ""]
        .iter()
        .enumerate()
        .map(|(i, text)| {
            let path = dir.path().join(i.to_string());
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect();
    assert_eq!(tokens(&paths, Tokenizer::Gpt2).unwrap(), [15496, 995, 50256, 262]);
    assert_eq!(
        tokens(&paths, Tokenizer::Bytes).unwrap(),
        "Hello world\0 the".bytes().map(u32::from).collect::<Vec<_>>()
    );
    let key = |paths: &[PathBuf], tokenizer| Corpus::open(paths, tokenizer, DEFAULT_TEXT_KEY).unwrap().key().digest;
    assert_eq!(key(&paths, Tokenizer::Gpt2), key(&[paths[1].clone(), paths[3].clone()], Tokenizer::Gpt2));
    assert_ne!(key(&paths, Tokenizer::Gpt2), key(&paths, Tokenizer::Bytes));
    assert_ne!(key(&paths, Tokenizer::Gpt2), key(&[paths[3].clone(), paths[1].clone()], Tokenizer::Gpt2));
}

#[test]
fn each_line_of_json_lines_is_a_document() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    };
    let long = "word ".repeat(READ_BLOCK_BYTES / 4);
    let lines = format!("{{\"text\": \"\"}}\n{{\"text\": \"a\"}}\n{{\"text\": \"{long}\"}}\n");
    let paths = [write("a.txt", "b"), write("b.jsonl", &lines), write("c.JSONL", "{\"text\": \"c\"}")];
    let expected: Vec<u32> = format!("b\0a\0{long}\0c").bytes().map(u32::from).collect();
    assert!(tokens(&paths, Tokenizer::Bytes).unwrap() == expected);
    let key = |paths: &[PathBuf]| Corpus::open(paths, Tokenizer::Bytes, DEFAULT_TEXT_KEY).unwrap().key().digest;
    assert_ne!(key(&[write("same.txt", &lines)]), key(&paths[1..2]));
    let bad = write("bad.jsonl", "{\"text\": \"a\"}\nnull\n");
    let error = tokens(&[bad], Tokenizer::Bytes).unwrap_err();
    assert!(matches!(error, DataError::JsonLine { line: 2, .. }) && error.is_bad_input(), "{error}");
}

#[test]
fn bad_bytes_are_named_by_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    let clean = "word ".repeat(READ_BLOCK_BYTES / 4);
    // In the first block, in a later one, truncated at the end, and truncated in the middle of the file.
    for (before, truncated, after) in
        [(3, "\u{e9}", "x"), (clean.len(), "\u{e9}", ""), (7, "\u{e9}", ""), (READ_BLOCK_BYTES - 1, "é", "é")]
    {
        let mut bytes = clean.as_bytes()[..before].to_vec();
        bytes.extend_from_slice(&truncated.as_bytes()[..1]);
        bytes.extend_from_slice(after.as_bytes());
        std::fs::write(&path, bytes).unwrap();
        let error = tokens(std::slice::from_ref(&path), Tokenizer::Gpt2).unwrap_err();
        assert!(matches!(error, DataError::InvalidUtf8 { offset, .. } if offset == before as u64), "{error}");
    }
}

#[test]
fn changed_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text");
    std::fs::write(&path, "one").unwrap();
    let corpus = Corpus::open(std::slice::from_ref(&path), Tokenizer::Bytes, DEFAULT_TEXT_KEY).unwrap();
    std::fs::write(&path, "two").unwrap();
    let error = corpus.tokenise(&mut |_, _| {}, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, DataError::Changed { .. }), "{error}");
}
