//! Parses plain scalars: YAML 1.2's core schema, extended by the booleans of YAML 1.1 and by numbers such as `1e-8` and
//! `1_000`, which users' files contain.

/// A plain scalar's type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Plain {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text,
}

/// Returns the type and value of a plain scalar. `yes`, `no`, `on` and `off` are text here; keys of type boolean use
/// [`boolean`].
pub(crate) fn plain(text: &str) -> Plain {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
        "true" | "True" | "TRUE" => return Plain::Bool(true),
        "false" | "False" | "FALSE" => return Plain::Bool(false),
        _ => {}
    }
    match number(text) {
        Some(number) => number,
        None => Plain::Text,
    }
}

/// Parses a boolean of YAML 1.1.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Option<Plain> {
    let digits = text.trim_start_matches(['+', '-']);
    if text.len() - digits.len() > 1 {
        return None;
    }
    let negative = text.starts_with('-');
    let sign = |v: i128| Plain::Int(if negative { -v } else { v });
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(rest) = digits.strip_prefix(prefix) {
            return i128::from_str_radix(rest, radix).ok().map(sign);
        }
    }
    match digits.to_ascii_lowercase().as_str() {
        ".inf" if negative => return Some(Plain::Float(f64::NEG_INFINITY)),
        ".inf" => return Some(Plain::Float(f64::INFINITY)),
        ".nan" => return Some(Plain::Float(f64::NAN)),
        _ => {}
    }
    // Rust's own parsers would also accept "inf" and "nan", so the characters are checked first.
    let first = digits.chars().next()?;
    let allowed = |c: char| c.is_ascii_digit() || "_.eE+-".contains(c);
    if !(first.is_ascii_digit() || first == '.') || !digits.chars().all(allowed) {
        return None;
    }
    let bare: String = text.chars().filter(|c| *c != '_').collect();
    if let Ok(int) = bare.parse::<i128>() {
        return Some(Plain::Int(int));
    }
    bare.parse::<f64>().ok().map(Plain::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_mean_what_users_mean() {
        for (text, expected) in [
            ("1e-8", Plain::Float(1e-8)),
            ("1.0e-5", Plain::Float(1e-5)),
            ("6.0E-4", Plain::Float(6e-4)),
            (".02", Plain::Float(0.02)),
            ("-.04", Plain::Float(-0.04)),
            ("5.", Plain::Float(5.0)),
            ("40e9", Plain::Float(40e9)),
            ("-.inf", Plain::Float(f64::NEG_INFINITY)),
            ("1_000", Plain::Int(1000)),
            ("0x10", Plain::Int(16)),
            ("-0o10", Plain::Int(-8)),
            ("007", Plain::Int(7)),
            ("~", Plain::Null),
            ("True", Plain::Bool(true)),
            ("on", Plain::Text),
            ("none", Plain::Text),
            ("inf", Plain::Text),
            ("nan", Plain::Text),
            ("1.2.3", Plain::Text),
            ("4MiB", Plain::Text),
            ("--1", Plain::Text),
            ("e5", Plain::Text),
        ] {
            assert_eq!(plain(text), expected, "{text}");
        }
        assert_eq!(boolean("On"), Some(true));
        assert_eq!(boolean("no"), Some(false));
        assert_eq!(boolean("y"), None);
    }
}
