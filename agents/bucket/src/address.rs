//! Addresses of buckets: `s3://BUCKET/PREFIX`.

use std::fmt;
use std::str::FromStr;

use object_store::path::Path;

use crate::error::BucketError;

const SCHEME: &str = "s3://";
/// Maximum bytes of a prefix: S3 allows 1,024 for the whole name of an object.
const MAX_PREFIX_BYTES: usize = 512;

/// A bucket, and the prefix of the names of objects in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketAddress {
    bucket: String,
    prefix: Path,
}

impl BucketAddress {
    /// Returns whether a text is meant as the address of a bucket instead of a path.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// Returns the name of the bucket.
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns the address of what is below this one.
    #[must_use]
    pub fn join<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Self {
        let prefix = parts.into_iter().fold(self.prefix.clone(), |prefix, part| prefix.join(part));
        Self { bucket: self.bucket.clone(), prefix }
    }

    /// Splits off the last part of the prefix; `None` if the prefix is empty.
    pub fn split_last(&self) -> Option<(Self, String)> {
        let mut parts: Vec<_> = self.prefix.parts().collect();
        let last = parts.pop()?;
        Some((Self { bucket: self.bucket.clone(), prefix: Path::from_iter(parts) }, last.as_ref().to_owned()))
    }

    /// Returns the prefix, which is empty for the whole bucket.
    pub const fn prefix(&self) -> &Path {
        &self.prefix
    }
}

impl FromStr for BucketAddress {
    type Err = BucketError;

    fn from_str(text: &str) -> Result<Self, BucketError> {
        let invalid = || BucketError::Address(text.to_owned());
        let rest = text.strip_prefix(SCHEME).ok_or_else(invalid)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || b".-".contains(&letter);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(is_name) || prefix.len() > MAX_PREFIX_BYTES {
            return Err(invalid());
        }
        let prefix = Path::parse(prefix).map_err(|_| invalid())?;
        Ok(Self { bucket: bucket.to_owned(), prefix })
    }
}

impl fmt::Display for BucketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        if self.prefix.as_ref().is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_bucket_and_prefix() {
        for (text, bucket, prefix, shown) in [
            ("s3://uploads", "uploads", "", "s3://uploads"),
            ("s3://a.b-1/", "a.b-1", "", "s3://a.b-1"),
            ("s3://uploads/team/x/", "uploads", "team/x", "s3://uploads/team/x"),
        ] {
            let address: BucketAddress = text.parse().unwrap();
            assert_eq!((address.bucket(), address.prefix().as_ref()), (bucket, prefix));
            assert_eq!(address.to_string(), shown);
        }
        let long = format!("s3://uploads/{}", "a".repeat(600));
        for text in ["uploads", "s3://", "s3://x", "s3://UPLOADS", "s3://a b", "s3://up/a//b", "s3://up/../b", &long] {
            let error = text.parse::<BucketAddress>().unwrap_err().to_string();
            assert!(error.ends_with("write s3://BUCKET or s3://BUCKET/PREFIX"), "{error}");
        }
    }
}
