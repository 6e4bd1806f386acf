//! Renders an error with its causes as one message.

use std::error::Error;

/// Returns the message of `error` followed by those of its causes, as `a: b: c`.
///
/// A cause is skipped if the text contains its message already: errors of some libraries repeat that of their source.
pub fn error_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum ReadError {
        #[error("can't read the journal")]
        File(#[source] io::Error),
        #[error("can't read the journal: {0}")]
        Repeated(#[source] io::Error),
        #[error("run.metrics")]
        Nested(#[source] Box<ReadError>),
    }

    #[test]
    fn causes_follow_the_error_once_each() {
        let full = || io::Error::other("the disk is full");
        let cases = [
            (ReadError::File(full()), "can't read the journal: the disk is full"),
            (ReadError::Repeated(full()), "can't read the journal: the disk is full"),
            (
                ReadError::Nested(ReadError::File(full()).into()),
                "run.metrics: can't read the journal: the disk is full",
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(error_chain(&error), expected);
        }
    }
}
