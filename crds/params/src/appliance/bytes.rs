//! Sizes with units: `40GB`, `4MiB`, `16Gi`, or a number of bytes.

use serde::{Deserialize, Serialize};

use crate::yaml::{FromNode, TreeReader, YamlNode, YamlValue};

/// A number of bytes, written as a number or with a unit: k, M, G, T, P for powers of 1000, Ki, Mi, Gi, Ti, Pi for
/// powers of 1024, each with or without a final B.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "u64", try_from = "RawSize")]
pub struct ByteSize(pub u64);

impl From<ByteSize> for u64 {
    fn from(bytes: ByteSize) -> Self {
        bytes.0
    }
}

/// The two notations of a size.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawSize {
    /// A number of bytes.
    Number(f64),
    /// A number with a unit.
    WithUnit(String),
}

/// The text or number is not a size.
#[derive(Debug, thiserror::Error)]
#[error("a size must be a number of bytes or one with a unit, as in 40GB or 4MiB")]
struct InvalidSize;

impl TryFrom<RawSize> for ByteSize {
    type Error = InvalidSize;

    fn try_from(written: RawSize) -> Result<Self, InvalidSize> {
        match written {
            RawSize::Number(bytes) => whole(bytes),
            RawSize::WithUnit(text) => parse(&text),
        }
        .ok_or(InvalidSize)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ByteSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number of bytes, or a number with a unit, as in 40GB or 4MiB.",
            "anyOf": [
                {"type": "integer"},
                {"type": "string"},
            ],
            "pattern": r"^[0-9.][0-9_.]*([eE]\+?[0-9]+)? ?[kKmMgGtTpP]?i?[bB]?$",
            "maxLength": 32,
            // The only choice of shapes that an API server supports is a number or a string.
            "x-kubernetes-int-or-string": true,
        })
    }
}

impl FromNode for ByteSize {
    const TYPE: &'static str = "a size such as 40GB, 4MiB or a number of bytes";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        let bytes = match &node.value {
            YamlValue::Scalar { text, .. } => parse(text),
            _ => None,
        };
        if bytes.is_none() {
            reader.wrong_type(node, Self::TYPE);
        }
        bytes
    }
}

fn parse(text: &str) -> Option<ByteSize> {
    let text = text.trim();
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() && c != 'e' && c != 'E');
    let unit = text[number.len()..].trim_end_matches(['B', 'b']);
    let power = |base: u64, letter: &str| {
        let exponent = ["k", "m", "g", "t", "p"].iter().position(|u| u.eq_ignore_ascii_case(letter))?;
        base.checked_pow(exponent as u32 + 1)
    };
    let factor = match unit.strip_suffix('i') {
        _ if unit.is_empty() => 1,
        Some(letter) => power(1024, letter)?,
        None => power(1000, unit)?,
    };
    let number = number.trim();
    if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    whole(number.replace('_', "").parse::<f64>().ok()? * factor as f64)
}

/// Returns a whole number of bytes that an f64 represents exactly.
fn whole(bytes: f64) -> Option<ByteSize> {
    const MAX_EXACT_F64_INTEGER: f64 = 9_007_199_254_740_992.0;
    (bytes.fract() == 0.0 && (0.0..=MAX_EXACT_F64_INTEGER).contains(&bytes)).then_some(ByteSize(bytes as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_with_units() {
        for (text, expected) in [
            ("40e9", Some(40_000_000_000)),
            ("40GB", Some(40_000_000_000)),
            ("4MiB", Some(4 << 20)),
            ("16Gi", Some(16 << 30)),
            ("1.5 kB", Some(1500)),
            ("2.4PB", Some(2_400_000_000_000_000)),
            ("512", Some(512)),
            ("512B", Some(512)),
            ("0.3", None),
            ("-1", None),
            ("40XB", None),
            ("GB", None),
            ("nanGB", None),
            ("1e400", None),
        ] {
            assert_eq!(parse(text), expected.map(ByteSize), "{text}");
        }
    }
}
