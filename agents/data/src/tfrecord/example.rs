//! The messages of TensorFlow that records contain: named lists of integers, numbers or bytes.

use std::collections::HashMap;

use prost::Message;

/// `tf.train.Example`, and the part of `tf.train.SequenceExample` that has the lists of a sequence. Both have the
/// features of the whole example as their first field.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Example {
    #[prost(message, optional, tag = "1")]
    features: Option<Features>,
    #[prost(message, optional, tag = "2")]
    feature_lists: Option<FeatureLists>,
}

#[derive(Clone, PartialEq, Message)]
struct Features {
    #[prost(map = "string, message", tag = "1")]
    feature: HashMap<String, Feature>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureLists {
    #[prost(map = "string, message", tag = "1")]
    feature_list: HashMap<String, FeatureList>,
}

#[derive(Clone, PartialEq, Message)]
struct FeatureList {
    #[prost(message, repeated, tag = "1")]
    feature: Vec<Feature>,
}

#[derive(Clone, PartialEq, Message)]
struct Feature {
    #[prost(message, optional, tag = "1")]
    bytes: Option<BytesList>,
    #[prost(message, optional, tag = "2")]
    floats: Option<FloatList>,
    #[prost(message, optional, tag = "3")]
    integers: Option<IntegerList>,
}

#[derive(Clone, PartialEq, Message)]
struct BytesList {
    #[prost(bytes = "vec", repeated, tag = "1")]
    value: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct FloatList {
    #[prost(float, repeated, tag = "1")]
    value: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct IntegerList {
    #[prost(int64, repeated, tag = "1")]
    value: Vec<i64>,
}

impl Example {
    pub fn parse(data: &[u8]) -> Option<Self> {
        Self::decode(data).ok()
    }

    fn feature(&self, name: &str) -> Option<&Feature> {
        self.features.as_ref()?.feature.get(name)
    }

    /// Returns the integers of a feature; numbers that are whole are integers, too.
    pub fn integers(&self, name: &str) -> Option<Vec<i64>> {
        let feature = self.feature(name)?;
        match (&feature.integers, &feature.floats) {
            (Some(list), _) => Some(list.value.clone()),
            (None, Some(list)) => {
                list.value.iter().map(|value| (value.fract() == 0.0).then_some(*value as i64)).collect()
            }
            (None, None) => None,
        }
    }

    /// Returns of each number of a feature whether it is greater than 0.
    pub fn flags(&self, name: &str) -> Option<Vec<bool>> {
        let feature = self.feature(name)?;
        match (&feature.integers, &feature.floats) {
            (Some(list), _) => Some(list.value.iter().map(|value| *value > 0).collect()),
            (None, Some(list)) => Some(list.value.iter().map(|value| *value > 0.0).collect()),
            (None, None) => None,
        }
    }

    /// Returns the only text of a feature.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.feature(name)?.bytes.as_ref()?.value.as_slice() {
            [text] => String::from_utf8(text.clone()).ok(),
            _ => None,
        }
    }

    /// Returns the words of a sequence, each of which is a feature of bytes.
    pub fn words(&self, name: &str) -> Option<Vec<String>> {
        let list = self.feature_lists.as_ref()?.feature_list.get(name)?;
        let bytes = list.feature.iter().flat_map(|feature| feature.bytes.iter().flat_map(|list| &list.value));
        bytes.map(|word| String::from_utf8(word.clone()).ok()).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns an example with these features of integers.
    pub fn example(features: &[(&str, &[i64])]) -> Vec<u8> {
        example_with_texts(features, &[])
    }

    /// Returns an example with these features of integers and of texts.
    pub fn example_with_texts(features: &[(&str, &[i64])], texts: &[(&str, &str)]) -> Vec<u8> {
        let integers = features.iter().map(|(name, value)| {
            let integers = Some(IntegerList { value: value.to_vec() });
            ((*name).to_owned(), Feature { bytes: None, floats: None, integers })
        });
        let texts = texts.iter().map(|(name, text)| {
            let bytes = Some(BytesList { value: vec![text.as_bytes().to_vec()] });
            ((*name).to_owned(), Feature { bytes, floats: None, integers: None })
        });
        let features = Some(Features { feature: integers.chain(texts).collect() });
        Example { features, feature_lists: None }.encode_to_vec()
    }

    #[test]
    fn example_of_tensorflow_is_read() {
        // Written by tf.train.Example: x = int64 [1, -1], y = float [1.0, 0.0].
        let mut bytes = vec![0x0a, 0x29];
        bytes.extend(b"\x0a\x14\x0a\x01x\x12\x0f\x1a\x0d\x0a\x0b\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        bytes.extend(b"\x0a\x11\x0a\x01y\x12\x0c\x12\x0a\x0a\x08\x00\x00\x80\x3f\x00\x00\x00\x00");
        let example = Example::parse(&bytes).unwrap();
        assert_eq!(example.integers("x"), Some(vec![1, -1]));
        assert_eq!(example.integers("y"), Some(vec![1, 0]));
        assert_eq!(example.flags("y"), Some(vec![true, false]));
        assert_eq!((example.integers("z"), example.words("x")), (None, None));
        assert_eq!(Example::parse(&bytes[..20]), None);
        // Written by tf.train.SequenceExample: tokens = [b"a", b"##b"].
        let sequence = b"\x12\x1c\x0a\x1a\x0a\x06tokens\x12\x10\x0a\x07\x0a\x05\x0a\x03##b\x0a\x05\x0a\x03\x0a\x01a";
        assert_eq!(Example::parse(sequence).unwrap().words("tokens"), Some(vec!["##b".into(), "a".into()]));
    }
}
