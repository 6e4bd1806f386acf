//! Adds to a file `tokenizer.json` the tokens that a model sees besides those of its text.

use serde_json::{Map, Value, json};

/// Where the tokens at the beginning and the end of a sample are, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTemplate<'a> {
    /// The token before a text, if there is one.
    pub begin: Option<&'a str>,
    /// The token after a text.
    pub end: &'a str,
}

/// Returns the tokenizer `json` with further special tokens, numbers and names, which a text is put between. Returns
/// `None` if it has other tokens with these numbers or names.
pub fn with_special_tokens(json: &[u8], tokens: &[(u32, String)], template: SampleTemplate<'_>) -> Option<Vec<u8>> {
    let mut tokenizer: Value = serde_json::from_slice(json).ok()?;
    match tokenizer.pointer_mut("/model/vocab")? {
        Value::Object(vocabulary) => insert_tokens(vocabulary, tokens)?,
        Value::Array(vocabulary) => append_tokens(vocabulary, tokens)?,
        _ => return None,
    }
    let added = tokenizer.get_mut("added_tokens")?.as_array_mut()?;
    added.retain(|token| !tokens.iter().any(|(_, name)| token["content"] == **name));
    added.extend(tokens.iter().map(|(id, name)| special_token(*id, name)));
    added.sort_by_key(|token| token["id"].as_u64());
    tokenizer["post_processor"] = template.post_processor(tokens)?;
    Some(tokenizer.to_string().into_bytes())
}

/// Adds tokens to a vocabulary of names and numbers.
fn insert_tokens(vocabulary: &mut Map<String, Value>, tokens: &[(u32, String)]) -> Option<()> {
    for (id, name) in tokens {
        let is_taken = |(other, number): (&String, &Value)| (other == name) != (number.as_u64() == Some((*id).into()));
        if vocabulary.iter().any(is_taken) {
            return None;
        }
        vocabulary.insert(name.clone(), (*id).into());
    }
    Some(())
}

/// Adds tokens to a list of names and scores, in which each number has an entry.
fn append_tokens(vocabulary: &mut Vec<Value>, tokens: &[(u32, String)]) -> Option<()> {
    /// Maximum number of entries that are added before the first token.
    const MAX_UNUSED: usize = 1 << 16;
    let mut tokens: Vec<_> = tokens.iter().collect();
    tokens.sort();
    for (id, name) in tokens {
        let unused = usize::try_from(*id).ok()?.checked_sub(vocabulary.len()).filter(|count| *count <= MAX_UNUSED)?;
        let first = vocabulary.len();
        // No text is divided into them, because their score is the lowest.
        vocabulary.extend((first..first + unused).map(|id| json!([format!("<unused {id}>"), f32::MIN])));
        vocabulary.push(json!([name, 0.0]));
    }
    Some(())
}

/// Returns the entry of a special token.
pub(crate) fn special_token(id: u32, name: &str) -> Value {
    json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        "special": true})
}

impl SampleTemplate<'_> {
    /// Returns the step that adds the tokens; `None` if `tokens` lacks one of them.
    fn post_processor(self, tokens: &[(u32, String)]) -> Option<Value> {
        let token = |name: &str, segment: u32| json!({"SpecialToken": {"id": name, "type_id": segment}});
        let text = |id: &str, segment: u32| json!({"Sequence": {"id": id, "type_id": segment}});
        let mut single: Vec<Value> = self.begin.iter().map(|name| token(name, 0)).collect();
        single.extend([text("A", 0), token(self.end, 0)]);
        let mut pair = single.clone();
        pair.extend([text("B", 1), token(self.end, 1)]);
        let mut special = Map::new();
        for name in self.begin.into_iter().chain([self.end]) {
            let (id, _) = tokens.iter().find(|(_, other)| other == name)?;
            special.insert(name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]}));
        }
        Some(json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tokenizer, TokenizerName};

    #[test]
    fn special_tokens_keep_their_numbers() {
        let names = ["[MASK]", "[CLS]", "[SEP]", "[PAD]"];
        // Tokens 256 to 259 are unused: the vocabulary of the model is padded.
        let tokens: Vec<(u32, String)> = (260..).zip(names.map(str::to_owned)).collect();
        let template = SampleTemplate { begin: Some("[CLS]"), end: "[SEP]" };
        let json = with_special_tokens(&Tokenizer::Bytes.to_json().unwrap(), &tokens, template).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), &json).unwrap();
        let tokenizer = Tokenizer::open(TokenizerName::File, Some(path.path())).unwrap();
        assert_eq!(tokenizer.encode("a[MASK]b[PAD]").unwrap(), [97, 260, 98, 263]);
        let special = tokenizer.special_tokens().unwrap();
        assert_eq!([special.mask, special.begin, special.end, special.padding], [260, 261, 262, 263]);
        assert!(with_special_tokens(&json, &[(97, "[MASK]".into())], template).is_none(), "97 is a byte");
        assert!(with_special_tokens(b"{}", &tokens, template).is_none());
    }
}
