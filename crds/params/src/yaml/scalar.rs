//! Parses plain scalars: YAML 1.2's core schema, extended by the booleans of YAML 1.1 and by numbers such as `1e-8` and
//! `1_000`, which users' files contain.

/// A plain scalar's type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScalarKind {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text,
}

/// Returns the type and value of a plain scalar. `yes`, `no`, `on` and `off` are text here; keys of type boolean use
/// [`parse_yaml11_bool`].
pub(crate) fn classify_scalar(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarKind::Null,
        "true" | "True" | "TRUE" => return ScalarKind::Bool(true),
        "false" | "False" | "FALSE" => return ScalarKind::Bool(false),
        _ => {}
    }
    match number(text) {
        Some(number) => number,
        None => ScalarKind::Text,
    }
}

/// Parses a boolean of YAML 1.1.
pub(crate) fn parse_yaml11_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn number(text: &str) -> Option<ScalarKind> {
    let digits = text.trim_start_matches(['+', '-']);
    if text.len() - digits.len() > 1 {
        return None;
    }
    let negative = text.starts_with('-');
    let sign = |v: i128| ScalarKind::Int(if negative { -v } else { v });
    for (prefix, radix) in [("0x", 16), ("0o", 8)] {
        if let Some(rest) = digits.strip_prefix(prefix) {
            return i128::from_str_radix(rest, radix).ok().map(sign);
        }
    }
    match digits.to_ascii_lowercase().as_str() {
        ".inf" if negative => return Some(ScalarKind::Float(f64::NEG_INFINITY)),
        ".inf" => return Some(ScalarKind::Float(f64::INFINITY)),
        ".nan" => return Some(ScalarKind::Float(f64::NAN)),
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
        return Some(ScalarKind::Int(int));
    }
    bare.parse::<f64>().ok().map(ScalarKind::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_scalars_are_typed_as_documented() {
        for (text, expected) in [
            ("1e-8", ScalarKind::Float(1e-8)),
            ("1.0e-5", ScalarKind::Float(1e-5)),
            ("6.0E-4", ScalarKind::Float(6e-4)),
            (".02", ScalarKind::Float(0.02)),
            ("-.04", ScalarKind::Float(-0.04)),
            ("5.", ScalarKind::Float(5.0)),
            ("40e9", ScalarKind::Float(40e9)),
            ("-.inf", ScalarKind::Float(f64::NEG_INFINITY)),
            ("1_000", ScalarKind::Int(1000)),
            ("0x10", ScalarKind::Int(16)),
            ("-0o10", ScalarKind::Int(-8)),
            ("007", ScalarKind::Int(7)),
            ("~", ScalarKind::Null),
            ("True", ScalarKind::Bool(true)),
            ("on", ScalarKind::Text),
            ("none", ScalarKind::Text),
            ("inf", ScalarKind::Text),
            ("nan", ScalarKind::Text),
            ("1.2.3", ScalarKind::Text),
            ("4MiB", ScalarKind::Text),
            ("--1", ScalarKind::Text),
            ("e5", ScalarKind::Text),
        ] {
            assert_eq!(classify_scalar(text), expected, "{text}");
        }
        assert_eq!(parse_yaml11_bool("On"), Some(true));
        assert_eq!(parse_yaml11_bool("no"), Some(false));
        assert_eq!(parse_yaml11_bool("y"), None);
    }
}
