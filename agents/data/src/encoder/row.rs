//! Reads the rows of CSV files in the formats of the public model zoo.

use std::borrow::Cow;

use super::NO_LABEL;
use super::csv::{CsvRow, Dialect};
use super::words::Vocabulary;
use crate::hdf5::SampleProblem;

/// What a row of a CSV file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CsvRows {
    /// Words of a vocabulary (`tokens`, `segment_ids`, `is_random_next`).
    Words,
    /// Numbers of tokens that are masked already (`input_ids`, `attention_mask`, `labels` and more).
    Masked,
    /// A sentence and its class, separated by a tab (`sentence`, `label`).
    Sentences,
    /// Two sentences and their class, separated by tabs (`sentence1`, `sentence2`, `gold_label`).
    SentencePairs,
    /// Words with the name of a class for each, separated by white space (`tokens`, `labels`).
    TokenClasses,
    /// Numbers of tokens, the places of sentences, and whether each belongs to the summary.
    Summaries,
    /// Like `Summaries`, with a vocabulary, so that the words of summaries can be compared.
    SummariesWithWords,
    /// Numbers of the tokens of a question and a text, and the positions of the answer (`input_ids`, `input_mask`,
    /// `segment_ids`, `start_position`, `end_position`).
    Answers,
}

/// Names of the classes of pairs of sentences (MNLI).
const PAIR_CLASSES: [&str; 3] = ["entailment", "neutral", "contradiction"];

impl CsvRows {
    pub(super) fn dialect(self) -> Dialect {
        match self {
            Self::Sentences | Self::SentencePairs => Dialect::Tabs,
            _ => Dialect::Commas,
        }
    }

    /// Returns whether the last path is that of a vocabulary.
    pub const fn has_words(self) -> bool {
        use CsvRows::*;
        matches!(self, Words | Sentences | SentencePairs | TokenClasses | SummariesWithWords)
    }

    pub(crate) fn extension(self) -> &'static str {
        if self.dialect() == Dialect::Tabs { "tsv" } else { "csv" }
    }

    /// Returns the columns, and whether each is required.
    pub(super) fn columns(self, predicts_next_sentence: bool) -> Vec<(&'static str, bool)> {
        let next = predicts_next_sentence;
        match self {
            Self::Words => vec![("tokens", true), ("segment_ids", next), ("is_random_next", next)],
            Self::Masked => vec![
                ("input_ids", true),
                ("attention_mask", true),
                ("labels", true),
                ("masked_lm_positions", false),
                ("masked_lm_weights", false),
                ("token_type_ids", next),
                ("next_sentence_label", next),
            ],
            Self::Sentences => vec![("sentence", true), ("label", true)],
            Self::SentencePairs => vec![("sentence1", true), ("sentence2", true), ("gold_label", true)],
            Self::TokenClasses => vec![("tokens", true), ("labels", true)],
            Self::Summaries | Self::SummariesWithWords => {
                vec![("input_token_ids", true), ("labels", true), ("segment_ids", true), ("cls_indices", true)]
            }
            Self::Answers => vec![
                ("input_ids", true),
                ("input_mask", true),
                ("segment_ids", true),
                ("start_position", true),
                ("end_position", true),
            ],
        }
    }
}

/// The content of a sample before it is padded.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Row {
    pub tokens: Vec<i32>,
    /// Segment of each token; 0 for tokens beyond the end.
    pub segments: Vec<i32>,
    /// Whether each token belongs to the word of the one before it; false beyond the end.
    pub continues: Vec<bool>,
    /// Positions of what is predicted, with the labels; negative ones do not count.
    pub predictions: Vec<(usize, i32)>,
    /// The label of the sample: its class, or whether the second segment does not follow the first.
    pub label: i32,
    /// For each token, the number of later tokens of its sequence, and its position there; `None` if all are of one.
    pub packing: Option<[Vec<i32>; 2]>,
}

/// Reads a row. `length` is the number of tokens of a sample.
pub(super) fn read(
    rows: CsvRows,
    row: &CsvRow<'_>,
    vocabulary: Option<&Vocabulary>,
    length: usize,
    predicts_next_sentence: bool,
) -> Result<Row, SampleProblem> {
    let fields = Fields { row, columns: rows.columns(predicts_next_sentence) };
    match (rows, vocabulary) {
        (CsvRows::Words, Some(vocabulary)) => words(&fields, vocabulary, length, predicts_next_sentence),
        (CsvRows::Sentences | CsvRows::SentencePairs, Some(vocabulary)) => sentences(rows, &fields, vocabulary, length),
        (CsvRows::TokenClasses, Some(vocabulary)) => token_classes(&fields, vocabulary),
        (CsvRows::Masked, _) => masked(&fields, predicts_next_sentence),
        (CsvRows::Summaries | CsvRows::SummariesWithWords, _) => summary(&fields),
        (CsvRows::Answers, _) => answer(&fields, length),
        (CsvRows::Words | CsvRows::Sentences | CsvRows::SentencePairs | CsvRows::TokenClasses, None) => {
            Err(SampleProblem::NoVocabulary)
        }
    }
}

struct Fields<'a> {
    row: &'a CsvRow<'a>,
    columns: Vec<(&'static str, bool)>,
}

impl Fields<'_> {
    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, SampleProblem> {
        let (name, is_required) = self.columns[column];
        let malformed = |expected| SampleProblem::Malformed { column: name, expected };
        match self.row.fields.get(column).and_then(Option::as_ref) {
            None if is_required => Err(malformed("a field")),
            None => Ok(None),
            Some(bytes) => std::str::from_utf8(bytes).map(|text| Some(text.into())).map_err(|_| malformed("UTF-8")),
        }
    }

    fn required(&self, column: usize) -> Result<Cow<'_, str>, SampleProblem> {
        let malformed = SampleProblem::Malformed { column: self.columns[column].0, expected: "a field" };
        self.text(column)?.ok_or(malformed)
    }

    fn integers(&self, column: usize) -> Result<Option<Vec<i32>>, SampleProblem> {
        let malformed = || SampleProblem::Malformed { column: self.columns[column].0, expected: "a list of integers" };
        self.text(column)?.map(|text| parse_integers(&text).ok_or_else(malformed)).transpose()
    }

    fn integer(&self, column: usize) -> Result<i32, SampleProblem> {
        let malformed = SampleProblem::Malformed { column: self.columns[column].0, expected: "an integer" };
        match self.integers(column)?.as_deref() {
            Some([one]) => Ok(*one),
            _ => Err(malformed),
        }
    }
}

fn words(
    fields: &Fields<'_>,
    vocabulary: &Vocabulary,
    length: usize,
    predicts_next_sentence: bool,
) -> Result<Row, SampleProblem> {
    let malformed = SampleProblem::Malformed { column: "tokens", expected: "a list of quoted words" };
    let mut words = parse_strings(&fields.required(0)?).ok_or(malformed)?;
    if words.len() > length {
        if predicts_next_sentence {
            return Err(SampleProblem::TooLong { found: words.len(), expected: length });
        }
        // As the zoo does.
        words.truncate(length);
    }
    Ok(Row {
        tokens: words.iter().map(|word| vocabulary.number(word)).collect(),
        segments: if predicts_next_sentence { fields.integers(1)?.unwrap_or_default() } else { Vec::new() },
        continues: words.iter().map(|word| word.starts_with("##")).collect(),
        label: if predicts_next_sentence { fields.integer(2)? } else { 0 },
        ..Row::default()
    })
}

fn masked(fields: &Fields<'_>, predicts_next_sentence: bool) -> Result<Row, SampleProblem> {
    let column = |index| Ok::<_, SampleProblem>(fields.integers(index)?.unwrap_or_default());
    let (mut tokens, attended, labels, positions) = (column(0)?, column(1)?, column(2)?, fields.integers(3)?);
    let weights = fields.integers(4)?;
    tokens.truncate(used_tokens(&attended));
    let is_counted =
        |index: usize| weights.as_ref().is_none_or(|weights| weights.get(index).is_some_and(|weight| *weight != 0));
    let position = |index: usize| match &positions {
        None => Some(index),
        Some(positions) => positions.get(index).and_then(|position| usize::try_from(*position).ok()),
    };
    let mut predictions = Vec::new();
    for (index, label) in labels.into_iter().enumerate().filter(|(index, label)| *label >= 0 && is_counted(*index)) {
        let malformed = SampleProblem::Malformed { column: "masked_lm_positions", expected: "a position per label" };
        predictions.push((position(index).ok_or(malformed)?, label));
    }
    Ok(Row {
        tokens,
        segments: if predicts_next_sentence { column(5)? } else { Vec::new() },
        predictions,
        label: if predicts_next_sentence { fields.integer(6)? } else { 0 },
        ..Row::default()
    })
}

/// Returns the number of tokens before the padding, which is at the end.
fn used_tokens(attended: &[i32]) -> usize {
    attended.iter().rposition(|attended| *attended != 0).map_or(0, |last| last + 1)
}

/// Reads a question with its text. A position beyond the sample, from which the text was cut, does not count.
fn answer(fields: &Fields<'_>, length: usize) -> Result<Row, SampleProblem> {
    let column = |index| Ok::<_, SampleProblem>(fields.integers(index)?.unwrap_or_default());
    let (mut tokens, segments) = (column(0)?, column(2)?);
    tokens.truncate(used_tokens(&column(1)?));
    let position = |index: usize| {
        let malformed = SampleProblem::Malformed { column: fields.columns[index].0, expected: "a position" };
        let value = fields.integer(index)?;
        let position = usize::try_from(value).map_err(|_| malformed)?;
        Ok::<_, SampleProblem>((0, if position < length { value } else { NO_LABEL }))
    };
    let predictions = vec![position(3)?, position(4)?];
    Ok(Row { tokens, segments, predictions, ..Row::default() })
}

fn sentences(rows: CsvRows, fields: &Fields<'_>, vocabulary: &Vocabulary, length: usize) -> Result<Row, SampleProblem> {
    let is_pair = rows == CsvRows::SentencePairs;
    let second = is_pair.then(|| fields.required(1)).transpose()?;
    let label = if is_pair { pair_class(&fields.required(2)?)? } else { fields.integer(1)? };
    Ok(sentence_row(vocabulary, length, &fields.required(0)?, second.as_deref(), label))
}

/// Divides one or two sentences into words, with special tokens, and shortens the longer one to the length of a sample.
pub(super) fn sentence_row(
    vocabulary: &Vocabulary,
    length: usize,
    first: &str,
    second: Option<&str>,
    label: i32,
) -> Row {
    let is_pair = second.is_some();
    let mut first = vocabulary.encode(first);
    let mut second = second.map(|second| vocabulary.encode(second)).unwrap_or_default();
    let max_tokens = length.saturating_sub(if is_pair { 3 } else { 2 });
    while first.len() + second.len() > max_tokens {
        if first.len() > second.len() {
            first.pop()
        } else {
            second.pop()
        };
    }
    let special = vocabulary.special;
    let mut tokens = [&[special.begin], first.as_slice(), &[special.end]].concat();
    let mut segments = vec![0; tokens.len()];
    if is_pair {
        tokens.extend(second.iter().copied().chain([special.end]));
        segments.resize(tokens.len(), 1);
    }
    tokens.truncate(length);
    Row { tokens, segments, label, ..Row::default() }
}

fn token_classes(fields: &Fields<'_>, vocabulary: &Vocabulary) -> Result<Row, SampleProblem> {
    let tokens = fields.required(0)?.split_whitespace().map(|word| vocabulary.number(word)).collect::<Vec<_>>();
    let unknown = SampleProblem::Malformed { column: "labels", expected: "a list of classes in label_vocab_file" };
    let classes = fields.required(1)?;
    let classes = classes.split_whitespace().map(|name| vocabulary.classes.get(name).copied());
    let classes = classes.collect::<Option<Vec<i32>>>().ok_or(unknown)?;
    if classes.len() != tokens.len() {
        return Err(SampleProblem::Malformed { column: "labels", expected: "a label for each of tokens" });
    }
    Ok(Row { tokens, predictions: classes.into_iter().enumerate().collect(), ..Row::default() })
}

fn pair_class(name: &str) -> Result<i32, SampleProblem> {
    let found = PAIR_CLASSES.iter().position(|class| *class == name.trim());
    let malformed = SampleProblem::Malformed { column: "gold_label", expected: "entailment, neutral or contradiction" };
    found.map(|class| class as i32).ok_or(malformed)
}

fn summary(fields: &Fields<'_>) -> Result<Row, SampleProblem> {
    let column = |index| Ok::<_, SampleProblem>(fields.integers(index)?.unwrap_or_default());
    let (labels, positions) = (column(1)?, column(3)?);
    if labels.len() != positions.len() {
        return Err(SampleProblem::Malformed { column: "labels", expected: "a label for each of cls_indices" });
    }
    let malformed = || SampleProblem::Malformed { column: "cls_indices", expected: "positions of the sample" };
    let predictions = positions.into_iter().zip(labels);
    let predictions =
        predictions.map(|(position, label)| Ok((usize::try_from(position).map_err(|_| malformed())?, label)));
    Ok(Row {
        tokens: column(0)?,
        segments: column(2)?,
        predictions: predictions.collect::<Result<_, SampleProblem>>()?,
        ..Row::default()
    })
}

/// Parses `[1, 2]`, `1 2` and `1`; numbers such as `1.0` are integers, too.
pub(super) fn parse_integers(text: &str) -> Option<Vec<i32>> {
    let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
    let parts = inner.split(|c: char| c == ',' || c.is_whitespace()).filter(|part| !part.is_empty());
    parts.map(|part| part.strip_suffix(".0").unwrap_or(part).parse().ok()).collect()
}

/// Parses a list of strings as Python writes it: `['[CLS]', "it's", '\'']`.
pub(super) fn parse_strings(text: &str) -> Option<Vec<String>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    let mut words = Vec::new();
    let mut rest = inner.trim_start();
    while !rest.is_empty() {
        let (word, after) = parse_string(rest)?;
        words.push(word);
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(next) => next.trim_start(),
            None if after.is_empty() => after,
            None => return None,
        };
    }
    Some(words)
}

/// Parses a quoted string at the beginning of `text`, and returns what follows it.
fn parse_string(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let mut word = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((index, character)) = characters.next() {
        match character {
            _ if character == quote => return Some((word, &text[index + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => word.push('\n'),
                't' => word.push('\t'),
                'r' => word.push('\r'),
                kind @ ('x' | 'u' | 'U') => {
                    let digits = match kind {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let mut code = 0;
                    for _ in 0..digits {
                        code = code * 16 + characters.next()?.1.to_digit(16)?;
                    }
                    word.push(char::from_u32(code)?);
                }
                other => word.push(other),
            },
            other => word.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_those_that_python_writes() {
        let words = |text: &str| parse_strings(text);
        assert_eq!(
            words(r#"['[CLS]', "it's", '\'', '\\', 'a"b', '\xe9\u4e2d']"#).unwrap().join("|"),
            "[CLS]|it's|'|\\|a\"b|é中"
        );
        assert_eq!(words("[]"), Some(Vec::new()));
        for text in ["", "['a'", "['a' 'b']", "[a]", "['a\\']", "['\\uzzzz']", "['\\U11000000']"] {
            assert_eq!(words(text), None, "{text}");
        }
        assert_eq!(parse_integers("[1, -2, 3]"), Some(vec![1, -2, 3]));
        assert_eq!(parse_integers("1 2.0"), Some(vec![1, 2]));
        assert_eq!(parse_integers("[]"), Some(Vec::new()));
        assert_eq!(parse_integers("[1, x]"), None);
        assert_eq!(parse_integers("99999999999"), None);
    }
}
