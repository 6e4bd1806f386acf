//! Text in each format, by each kind of tokenizer.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use millrace_data::{
    DataError, Dataset, SourceKind, SourceSpec, TextDecoder, TextFiles, TokenType, Tokenizer, TokenizerName, inspect,
};
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde::Deserialize;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizers");

/// What Python's `tokenizers` gave.
#[derive(Deserialize)]
struct Expected {
    text: String,
    llama3: Encoded,
    llama2: Encoded,
    bert: Encoded,
    t5: Encoded,
}

#[derive(Deserialize)]
struct Encoded {
    tokens: Vec<u32>,
    text: String,
}

fn expected() -> Expected {
    serde_json::from_slice(&std::fs::read(format!("{FIXTURES}/expected.json")).unwrap()).unwrap()
}

fn write(dir: &Path, name: &str, content: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

/// Returns the tokens of all samples of two tokens, each of which is followed by the first of the next.
fn tokens(dir: &Path, kind: SourceKind) -> Result<Vec<u32>, DataError> {
    let spec = SourceSpec { cache_dir: Some(dir.join("cache")), ..SourceSpec::new(kind, 1) };
    inspect(&spec)?;
    let dataset = Dataset::open(&spec, |_, _| {})?;
    let (mut first, mut next) = ([0], [0]);
    let mut tokens = Vec::new();
    for n in 0..dataset.windows() {
        dataset.sample(n, &mut first, &mut next)?;
        tokens.extend((n == 0).then_some(first[0] as u32));
        tokens.push(next[0] as u32);
    }
    Ok(tokens)
}

#[test]
fn tokenizers_of_files_give_the_tokens_of_the_library() {
    let dir = tempfile::tempdir().unwrap();
    let expected = expected();
    let line = serde_json::json!({ "text": expected.text }).to_string();
    let data = write(dir.path(), "a.jsonl", format!("{line}\n{line}").as_bytes());
    for (name, encoded, separator) in [
        ("llama3", &expected.llama3, "<|end_of_text|>"),
        ("llama2", &expected.llama2, "</s>"),
        ("bert", &expected.bert, "[SEP]"),
        ("t5", &expected.t5, "</s>"),
    ] {
        let file = format!("{FIXTURES}/{name}.json");
        let tokenizer = Tokenizer::open(TokenizerName::File, Some(file.as_ref())).unwrap();
        assert_eq!(tokenizer.encode(&expected.text).unwrap(), encoded.tokens, "{name}");
        assert_eq!(tokenizer.decode(&encoded.tokens), encoded.text, "{name}");
        assert_eq!(tokenizer.separator_name(), separator, "{name}");
        let text = SourceKind::Text(TextFiles::new(vec![data.clone(), file], TokenizerName::File));
        let documents = [&encoded.tokens[..], &[tokenizer.separator()], &encoded.tokens].concat();
        assert_eq!(tokens(dir.path(), text).unwrap(), documents, "{name}");

        // One by one, after a prompt.
        let (prompt, rest) = encoded.tokens.split_at(20);
        let mut decoder = TextDecoder::new(&tokenizer, prompt);
        let mut text: String = rest.iter().map(|token| decoder.push(*token)).collect();
        text.push_str(&decoder.finish());
        assert_eq!(tokenizer.decode(prompt) + &text, encoded.text, "{name}");
    }
}

#[test]
fn every_format_gives_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let documents = ["In the beginning", "", "God created\nthe heaven", "and the earth."];
    let lines: String =
        documents.iter().map(|text| serde_json::json!({"id": 1, "body": text}).to_string() + "\n").collect();
    let gzip = |content: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    };
    let zstd = |content: &[u8]| ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Fastest);
    let plain = documents.map(|text| write(dir.path(), &format!("{}.txt", text.len()), text.as_bytes())).to_vec();
    let separate = documents.map(|text| write(dir.path(), &format!("{}.txt.gz", text.len()), &gzip(text.as_bytes())));
    let parquet = dir.path().join("rows.parquet");
    write_parquet(&parquet, &documents);
    let all = [
        plain.clone(),
        separate.to_vec(),
        vec![write(dir.path(), "a.jsonl", lines.as_bytes())],
        vec![write(dir.path(), "a.json.gz", &gzip(lines.as_bytes()))],
        vec![write(dir.path(), "a.jsonl.zst", &zstd(lines.as_bytes()))],
        vec![parquet.display().to_string()],
    ];
    let expected: Vec<u32> =
        "In the beginning\0God created\nthe heaven\0and the earth.".bytes().map(u32::from).collect();
    for paths in all {
        let text = TextFiles { text_key: "body".into(), ..TextFiles::new(paths.clone(), TokenizerName::Bytes) };
        assert_eq!(tokens(dir.path(), SourceKind::Text(text)).unwrap(), expected, "{paths:?}");
    }
}

/// Writes a column of numbers and one of texts, some of which are missing, in several groups of rows.
fn write_parquet(path: &Path, documents: &[&str]) {
    let schema = "message rows { required int32 id; optional binary body (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, WriterProperties::new().into()).unwrap();
    for text in documents {
        let mut group = file.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&[1, 2], None, None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(*text)], Some(&[1, 0]), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
}

#[test]
fn tokens_of_any_width_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let numbers: Vec<u32> = vec![1, 70_000, 128_255, 3, 0];
    let wide_tokens: Vec<u8> = numbers.iter().flat_map(|token| token.to_le_bytes()).collect();
    let header = "{'descr': '<u4', 'fortran_order': False, 'shape': (5,), }\n";
    let npy =
        [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &wide_tokens].concat();
    for path in [write(dir.path(), "a.bin", &wide_tokens), write(dir.path(), "a.npy", &npy)] {
        let kind = SourceKind::Tokens { paths: vec![path], token_type: TokenType::Uint32 };
        assert_eq!(tokens(dir.path(), kind).unwrap(), numbers);
    }
}

#[test]
fn bad_files_are_named_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let text = |paths: &[String], tokenizer| SourceKind::Text(TextFiles::new(paths.to_vec(), tokenizer));
    let plain = write(dir, "a.txt", b"some text");
    let llama: serde_json::Value =
        serde_json::from_slice(&std::fs::read(format!("{FIXTURES}/llama3.json")).unwrap()).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut changed = llama.clone();
        change(&mut changed);
        [plain.clone(), write(dir, name, changed.to_string().as_bytes())]
    };
    let without_end = |all: &mut serde_json::Value| {
        all["added_tokens"] = serde_json::json!([]);
        all["model"]["vocab"].as_object_mut().unwrap().remove("<|end_of_text|>");
    };
    let rows = dir.join("rows.parquet");
    write_parquet(&rows, &["text"]);
    let rows = rows.display().to_string();
    let truncated = write(dir, "cut.parquet", &std::fs::read(&rows).unwrap()[..60]);
    let gzip = write(dir, "cut.txt.gz", b"\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b");
    let tokens_of = |paths: &[String], tokenizer| tokens(dir, text(paths, tokenizer)).unwrap_err();
    for (error, message) in [
        (tokens_of(&[plain.clone(), "no.json".into()], TokenizerName::File), "no.json does not exist"),
        (tokens_of(&[plain.clone(), plain.clone()], TokenizerName::File), "a.txt is not a tokenizer.json: expected"),
        (
            tokens_of(&changed("dropout.json", &|all| all["model"]["dropout"] = 0.1.into()), TokenizerName::File),
            "dropout",
        ),
        (tokens_of(&changed("no-end.json", &without_end), TokenizerName::File), "has no token that ends a document"),
        (tokens_of(std::slice::from_ref(&gzip), TokenizerName::Bytes), "cut.txt.gz can't be expanded: it is damaged"),
        (
            tokens_of(std::slice::from_ref(&truncated), TokenizerName::Bytes),
            "cut.parquet is not a Parquet file, or damaged",
        ),
        (tokens_of(std::slice::from_ref(&rows), TokenizerName::Bytes), "has no column `text`, but id, body"),
        (
            tokens_of(&[write(dir, "b.parquet", b"text")], TokenizerName::Bytes),
            "b.parquet is another file; expected a Parquet",
        ),
        (tokens_of(&[write(dir, "b.txt", b"PAR1")], TokenizerName::Bytes), "b.txt is a Parquet file; expected UTF-8"),
    ] {
        assert!(error.is_bad_input() && error.to_string().contains(message), "{message}: {error}");
        assert!(!error.hint().is_empty());
    }
}
