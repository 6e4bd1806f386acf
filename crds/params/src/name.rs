//! Names that become a part of a path or the name of a Kubernetes object.
//!
//! ```
//! use millrace_params::{FileName, LabelName, ObjectName};
//!
//! assert!(ObjectName::new("team-a.data").is_ok());
//! assert!(LabelName::new("team-a").is_ok());
//! assert!(FileName::new("0-0000-Genesis.txt").is_ok());
//! for hostile in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", "%2e%2e", "é"] {
//!     assert!(ObjectName::new(hostile).is_err() && LabelName::new(hostile).is_err() && FileName::new(hostile).is_err());
//! }
//! ```
//!
//! * A value of these types exists only if its text is valid, whether it was built by `new`, parsed, or read by serde.
//! * As a path, a value is exactly one component, and neither hidden (leading dot) nor `.` or `..`. Code that joins
//!   such a name to a path takes one of these types instead of a string.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// Maximum characters of a rejected name that an error message quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// Error for a text that is not a valid name of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{quoted} is not a valid name: write {rule}")]
pub struct InvalidName {
    quoted: String,
    rule: &'static str,
}

impl InvalidName {
    fn new(text: &str, rule: &'static str) -> Self {
        let mut quoted: String = text.chars().take(MAX_QUOTED_CHARS).collect();
        if quoted.len() < text.len() {
            quoted.push('…');
        }
        Self { quoted: format!("{quoted:?}"), rule }
    }
}

fn is_lower_or_digit(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Returns whether `text` is a label of RFC 1123, without checking its length.
fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(&first), Some(&last)) = (bytes.first(), bytes.last()) else { return false };
    is_lower_or_digit(first)
        && is_lower_or_digit(last)
        && bytes.iter().all(|&byte| is_lower_or_digit(byte) || byte == b'-')
}

/// Returns whether `text` consists of labels of RFC 1123, separated by dots.
fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

fn is_file_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

fn is_blob_digest(text: &str) -> bool {
    let digits = text.strip_prefix("blake3:");
    digits.is_some_and(|digits| {
        digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

macro_rules! validated_name {
    ($(#[$doc:meta])* $name:ident, $max_bytes:literal, $pattern:literal, $rule:literal, $is_valid:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Maximum length of a name, in bytes.
            pub const MAX_BYTES: usize = $max_bytes;
            /// Regular expression of the valid names, without the bound on the length.
            pub const PATTERN: &'static str = $pattern;
            /// Description of a valid name, to complete a sentence that begins with "write".
            pub const RULE: &'static str = $rule;

            /// Checks a name.
            ///
            /// # Errors
            /// The name is invalid; the message describes a valid one.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                if text.len() <= Self::MAX_BYTES && $is_valid(&text) {
                    Ok(Self(text))
                } else {
                    Err(InvalidName::new(&text, Self::RULE))
                }
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<Path> for $name {
            fn as_ref(&self) -> &Path {
                Path::new(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                Self::new(text).map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string", "minLength": 1, "maxLength": Self::MAX_BYTES, "pattern": Self::PATTERN
                })
            }
        }
    };
}

validated_name!(
    /// The name of a Kubernetes object: a DNS subdomain of RFC 1123.
    ObjectName,
    253,
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    "at most 253 lower-case letters, digits, hyphens and dots, where each part between dots begins and ends with a letter or \
     a digit",
    is_subdomain
);

validated_name!(
    /// The name of a namespace or of a volume: a DNS label of RFC 1123.
    LabelName,
    63,
    "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    "at most 63 lower-case letters, digits and hyphens, with a letter or a digit at both ends",
    is_label
);

validated_name!(
    /// The name of a file that the appliance creates: one component of a path, and a valid key of a ConfigMap.
    FileName,
    253,
    "^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
    "at most 253 letters, digits, hyphens, underscores and dots, without a dot at the beginning",
    is_file_name
);

validated_name!(
    /// The address of an uploaded blob: the BLAKE3 digest of its content.
    BlobDigest,
    71,
    "^blake3:[0-9a-f]{64}$",
    "blake3: and the 64 hexadecimal digits of the digest, in lower case",
    is_blob_digest
);

impl From<LabelName> for ObjectName {
    /// Every label is a subdomain.
    fn from(label: LabelName) -> Self {
        Self(label.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malicious_names_are_rejected() {
        let long = "x".repeat(254);
        for hostile in [
            "",
            ".",
            "..",
            "...",
            "a/b",
            "/",
            "/x",
            "../x",
            "x/",
            "x/..",
            "a\\b",
            "a\0",
            "\0",
            "a b",
            "a\n",
            "%2e%2e",
            "%2f",
            "é",
            "x\u{202e}y",
            "．．",
            "-",
            "a:b",
            "~",
            "$HOME",
            &long,
        ] {
            assert!(ObjectName::new(hostile).is_err(), "{hostile:?}");
            assert!(LabelName::new(hostile).is_err(), "{hostile:?}");
            assert!(FileName::new(hostile).is_err() || hostile == "-", "{hostile:?}");
            let json = serde_json::Value::from(hostile);
            assert!(serde_json::from_value::<ObjectName>(json).is_err(), "{hostile:?}");
        }
        for bad in ["A", "a_b", "-a", "a-", "a..b", ".a", "a.", "a.-b"] {
            assert!(ObjectName::new(bad).is_err(), "{bad}");
        }
        assert!(LabelName::new("a.b").is_err() && LabelName::new("x".repeat(64)).is_err());
        assert!(FileName::new(".hidden").is_err());
        let digits = "0123456789abcdef".repeat(4);
        assert!(BlobDigest::new(format!("blake3:{digits}")).is_ok());
        for bad in ["", "blake3:", &digits, &format!("blake3:{}", digits.to_uppercase()), &format!("blake3:{digits}0")]
        {
            assert!(BlobDigest::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_are_single_components_of_paths() {
        let root = Path::new("root");
        for path in [
            root.join(ObjectName::new("a.b-c.0").unwrap()),
            root.join(LabelName::new("team-a").unwrap()),
            root.join(FileName::new("0-0000-A_b.txt").unwrap()),
        ] {
            assert_eq!(path.parent(), Some(root));
        }
    }

    #[test]
    fn long_name_is_shortened_and_escaped_in_errors() {
        let error = LabelName::new("\0".repeat(1000)).unwrap_err().to_string();
        assert!(error.contains("\\0") && error.contains("write at most 63") && error.len() < 300, "{error}");
    }
}
