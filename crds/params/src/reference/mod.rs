//! The reference of the params: every key with its type, default, choices, aliases and description.
//!
//! It is made of the tables that also generate the reader ([`Params::REFERENCE`](crate::Params::REFERENCE) and its
//! sections), and is shown in three forms: [`explain`] for terminals, [`to_markdown`] for `docs/reference/params.md`,
//! and `editor_schema` (with the feature `schema`) for editors.
//!
//! ```
//! let text = millrace_params::reference::explain("model.nonlinearity").unwrap();
//! assert!(text.contains("gelu_new"));
//! let error = millrace_params::reference::explain("model.nonlinarity").unwrap_err();
//! assert_eq!(error.suggestion.as_deref(), Some("model.nonlinearity"));
//! ```
//!
//! * A key without a description or a default does not compile. Tests compare defaults, choices and aliases with what

mod explain;
mod markdown;
#[cfg(feature = "schema")]
mod schema;
mod trainer;
#[cfg(feature = "schema")]
mod trainer_schema;

pub use explain::{UnknownKeyError, explain, overview};
pub use markdown::to_markdown;
#[cfg(feature = "schema")]
pub use schema::editor_schema;

pub use crate::document::sections;
pub use crate::keys::{DefaultValue, KeyFacts, KeyReference, SectionReference};

/// Breaks a text into lines of at most `width` characters, each after the first with `indent` before it. Words in
/// backquotes that contain spaces may be broken, because Markdown joins lines again.
fn wrap(text: &str, width: usize, indent: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
        } else if !line.trim().is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}
