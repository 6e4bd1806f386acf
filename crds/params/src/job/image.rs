//! The image model of a resolved job, and the images that it reads.

use serde::{Deserialize, Serialize};

use super::model::Nonlinearity;

/// The size of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageShape {
    /// Number of channels: 1 for gray, 3 for red, green and blue.
    pub channels: usize,
    /// Number of rows of pixels.
    pub height: usize,
    /// Number of columns of pixels.
    pub width: usize,
}

impl ImageShape {
    /// Returns the dimensions as a graph has them: channels, rows, columns.
    pub const fn dimensions(self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// Returns the number of elements.
    pub const fn elements(self) -> usize {
        self.channels.saturating_mul(self.height).saturating_mul(self.width)
    }
}

/// What a model has if it assigns a class to each image. The number of classes is the size of its vocabulary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageOptions {
    /// Size of the images.
    pub shape: ImageShape,
    /// What computes the class.
    pub network: ImageNetwork,
}

/// What computes the class of an image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum ImageNetwork {
    /// Linear layers over all pixels, each with activation and dropout.
    Mlp {
        /// Width of each layer but the output layer.
        hidden_sizes: Vec<usize>,
    },
    /// An encoder over patches of the image, after a trained row whose output is classified.
    Transformer {
        /// Rows and columns of pixels of a patch; they divide those of the image.
        patch_size: [usize; 2],
        /// Whether the projection of patches has a bias.
        has_projection_bias: bool,
        /// Activation of a layer between the encoder and the output layer; `None` if there is no such layer.
        pooler_nonlinearity: Option<Nonlinearity>,
    },
}

impl ImageOptions {
    /// Returns the number of rows that the network computes for each image: its patches and the trained row; 1 for
    /// linear layers.
    pub fn rows(&self) -> usize {
        match &self.network {
            ImageNetwork::Mlp { .. } => 1,
            ImageNetwork::Transformer { patch_size: [height, width], .. } => {
                let patches = (self.shape.height / (*height).max(1)).saturating_mul(self.shape.width / (*width).max(1));
                patches.saturating_add(1)
            }
        }
    }
}

/// Images with a class each, as an input reads them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageSource {
    /// How they are stored.
    pub format: ImageFormat,
    /// Which of the stored images are read.
    pub part: ImagePart,
    /// Size of an image after all transforms.
    pub shape: ImageShape,
    /// Number of classes.
    pub classes: usize,
    /// What is done with an image, in order.
    pub transforms: Vec<ImageTransform>,
}

/// How images are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageFormat {
    /// Files of the MNIST database: one of images, one of labels.
    Idx,
    /// A directory for each class, with PNG and JPEG files.
    Folder,
}

/// A part of a data set that has one for training and one for evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImagePart {
    /// The images to train on.
    Train,
    /// The images to evaluate on.
    Validation,
}

/// A change of an image. Numbers of pixels are 0 to 1, and sizes are rows and columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "name")]
pub enum ImageTransform {
    /// Scales the image to a size.
    Resize {
        /// The size.
        size: [usize; 2],
    },
    /// Scales the image so that its shorter side has a length, and keeps its proportions.
    ResizeShorterSide {
        /// The length.
        length: usize,
    },
    /// Cuts out the center.
    CenterCrop {
        /// Size of the part.
        size: [usize; 2],
    },
    /// Cuts out a random part, and scales it to a size.
    RandomResizedCrop {
        /// The size.
        size: [usize; 2],
        /// Smallest and largest share of the area.
        scale: [f64; 2],
        /// Smallest and largest quotient of width and height.
        ratio: [f64; 2],
    },
    /// Exchanges left and right, with a probability.
    RandomHorizontalFlip {
        /// The probability.
        p: f64,
    },
    /// Subtracts a mean from each channel, and divides by a standard deviation.
    Normalize {
        /// The mean of each channel, or one for all.
        mean: Vec<f64>,
        /// The standard deviation of each channel, or one for all.
        std: Vec<f64>,
    },
}
