//! The end of a page of a list.

use std::fmt;
use std::str::FromStr;

use super::check_uid;
use crate::error::Error;

/// Position of the last job of a page. Its text can be part of a URL without encoding; clients must treat it as opaque.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageCursor {
    pub(super) created_ms: i64,
    pub(super) uid: String,
}

impl fmt::Display for PageCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created_ms, self.uid)
    }
}

impl FromStr for PageCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (created_ms, uid) = text.split_once('.').ok_or(Error::BadCursor)?;
        let created_ms = created_ms.parse().map_err(|_| Error::BadCursor)?;
        check_uid(uid).map_err(|_| Error::BadCursor)?;
        Ok(Self { created_ms, uid: uid.to_owned() })
    }
}
