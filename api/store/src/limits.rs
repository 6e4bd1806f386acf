//! Bounds on values that are stored.

/// Maximum length of a UID; one of Kubernetes has 36 characters.
pub(crate) const MAX_UID_LENGTH: usize = 64;
/// The largest number that is stored: the largest integer that every JSON parser reads exactly, and far from the
/// overflow of sums.
pub(crate) const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;
