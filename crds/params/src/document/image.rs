//! The keys about images: transforms, and sizes that have two forms.

use serde::{Deserialize, Serialize};

use crate::keys::SectionReference;
use crate::keys::facts::{default, required, required_if};
use crate::keywords::{INTERPOLATIONS, TRANSFORMS};
use crate::yaml::{FromNode, TreeReader, YamlNode, YamlValue, list_of, section};

/// A size in pixels: one number, or rows and columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ImageSize {
    /// The same number for both.
    One(u64),
    /// Rows and columns.
    Many(Vec<u64>),
}

impl FromNode for ImageSize {
    const TYPE: &'static str = "a whole number or a list of two";

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        match &node.value {
            YamlValue::List(items) => reader.items(items).map(Self::Many),
            _ => reader.value(node).map(Self::One),
        }
    }
}

section! {
    /// A change of each image. Random ones are a function of the seed and the number of the sample.
    pub struct ImageTransformParams {
        /// What is done with the image. `to_tensor` has no effect: pixels are numbers from 0 to 1 in any case.
        name: String = required().one_of(&TRANSFORMS),
        /// Rows and columns of the result of `resize`, `center_crop` and `random_resized_crop`. With one number,
        /// `resize` gives it to the shorter side and keeps the proportions.
        size: ImageSize = required_if("the name is `resize`, `center_crop` or `random_resized_crop`"),
        /// Smallest and largest share of the image's area that `random_resized_crop` cuts out.
        scale: Vec<f64> = default("[0.08, 1.0]"),
        /// Smallest and largest quotient of width and height of what `random_resized_crop` cuts out.
        ratio: Vec<f64> = default("[0.75, 1.3333333333333333]"),
        /// How pixels are computed if the size changes.
        interpolation: String = default("bilinear").one_of(&INTERPOLATIONS),
        /// Probability of `random_horizontal_flip`.
        p: f64 = default("0.5"),
        /// Number that `normalize` subtracts: one for each channel, or one for all.
        mean: Vec<f64> = required_if("the name is `normalize`"),
        /// Number by which `normalize` divides: one for each channel, or one for all.
        std: Vec<f64> = required_if("the name is `normalize`"),
    }
    ignored {
        /// Whether a smaller size averages over pixels; Millrace always does so.
        antialias: bool,
    }
    unsupported {}
}

impl FromNode for Vec<ImageTransformParams> {
    const TYPE: &'static str = "a list of mappings with a name";
    const SECTION: Option<&'static SectionReference> = Some(ImageTransformParams::REFERENCE);

    fn from_node(node: &YamlNode, reader: &mut TreeReader) -> Option<Self> {
        list_of(node, reader, Self::TYPE)
    }
}
