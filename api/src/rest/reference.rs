//! Compares `docs/reference/rest.md` with the code: the reasons of errors, and the limits.

use super::overrides::OVERRIDE_FLAGS;
use super::rate_limit::{BAD_TOKEN_REQUESTS_PER_SECOND, MAX_BAD_TOKEN_BURST, MAX_REQUEST_BURST, REQUESTS_PER_SECOND};
use super::records::{DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS};
use super::submit::{MAX_FILES, MAX_JOB_BYTES};
use super::unread_body::{DISCARD_TIMEOUT, MAX_DISCARDED_BYTES};
use super::{MAX_BODY_BYTES, RESPONSE_TIMEOUT, body, jobs, live_stream, session, uploads};
use crate::compute::{
    MAX_PENDING, MAX_PLAN_BURST_MEGABYTES, MAX_TOTAL_PENDING, PLAN_MEGABYTES_PER_SECOND, QUEUE_TIMEOUT,
};
use crate::error::ErrorReason;

/// Returns the text of the document.
fn rest_reference() -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/rest.md");
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_error_reason_is_documented_with_its_status() {
    let text = rest_reference();
    let begin = text.find("| status | reason | meaning |").unwrap();
    let table: Vec<&str> = text[begin..].lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    for reason in ErrorReason::ALL {
        let row = format!("| {} | `{}` | ", reason.status(), reason.as_str());
        assert_eq!(table.iter().filter(|line| line.starts_with(&row)).count(), 1, "{row}");
    }
    assert_eq!(table.len(), ErrorReason::ALL.len(), "the document has a reason that does not exist");
}

#[test]
fn limits_are_documented() {
    let text = rest_reference().split_whitespace().collect::<Vec<_>>().join(" ");
    let mebibytes = |bytes: usize| format!("{} MiB", bytes >> 20);
    let gigabytes = MAX_PLAN_BURST_MEGABYTES.get() / 1024;
    for sentence in [
        format!("| body of a request | {} |", mebibytes(MAX_BODY_BYTES)),
        format!("connection is kept | {} within {} s |", mebibytes(MAX_DISCARDED_BYTES), DISCARD_TIMEOUT.as_secs()),
        format!("| a job or params document | {} |", mebibytes(MAX_JOB_BYTES)),
        format!("| {MAX_FILES}; uploaded texts together {} |", mebibytes(uploads::MAX_UPLOAD_BYTES)),
        format!("| requests of one token | {REQUESTS_PER_SECOND}/s, bursts of {MAX_REQUEST_BURST};"),
        format!("of one network | {REQUESTS_PER_SECOND}/s, bursts of {MAX_REQUEST_BURST};"),
        format!("the same bad token {BAD_TOKEN_REQUESTS_PER_SECOND}/s, bursts of {MAX_BAD_TOKEN_BURST} |"),
        format!("one account at a time | {MAX_PENDING}; of all accounts {MAX_TOTAL_PENDING} |"),
        format!("| {PLAN_MEGABYTES_PER_SECOND} MB/s of plan size, bursts of {gigabytes} GB:"),
        format!("| time until a check or plan begins | {} s |", QUEUE_TIMEOUT.as_secs()),
        format!("| time until a response begins | {} s |", RESPONSE_TIMEOUT.as_secs()),
        format!("the body was not received within {} s |", body::BODY_TIMEOUT.as_secs()),
        format!("| jobs | `limit`, 50 by default and at most {};", jobs::MAX_PAGE_JOBS),
        format!("`limit`, {DEFAULT_PAGE_ITEMS} by default and at most {};", grouped(MAX_PAGE_ITEMS)),
        format!("sent every {} s without data", live_stream::KEEP_ALIVE_INTERVAL.as_secs()),
        format!("ends within {} s after its token", live_stream::REAUTHORIZE_INTERVAL.as_secs()),
        format!("a cookie that is valid for {} hours", session::MAX_SESSION_HOURS),
    ] {
        assert!(text.contains(&sentence), "docs/reference/rest.md lacks {sentence:?}");
    }
    for flag in OVERRIDE_FLAGS {
        assert!(text.contains(&format!("`{flag}`")), "docs/reference/rest.md lacks `{flag}`");
    }
}

/// Formats a number with commas between thousands.
fn grouped(number: u32) -> String {
    format!("{},{:03}", number / 1000, number % 1000)
}
