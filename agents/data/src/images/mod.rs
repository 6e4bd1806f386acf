//! Images with a class each: idx files, or a directory of PNG and JPEG files for each class.
//!
//! A sample is the array `image` (channels, rows and columns of numbers) and the class in `labels`. It is a function of
//! the files, the transforms, the seed and the number of the sample.

mod folder;
mod idx;
mod problem;
mod transform;

use std::path::Path;

use millrace_params::{ImageFormat, ImageSource};

pub use problem::ImageProblem;
use transform::Image;

use crate::DataError;
use crate::hdf5::SampleProblem;
use crate::permute::key;

/// Distinguishes the draws of transforms from the order of samples, which has the same seed.
const TRANSFORM_KEY: u64 = 0x696d_6167_6573_0001;

/// An open source of images.
pub(crate) struct ImageStore {
    source: ImageSource,
    seed: u64,
    content: ImageContent,
}

enum ImageContent {
    Idx(idx::IdxImages),
    Folder(folder::FolderImages),
}

impl ImageStore {
    /// Opens the files. Those of an idx source are read completely, of directories only names.
    pub(crate) fn open(paths: &[String], source: &ImageSource, seed: u64) -> Result<Self, DataError> {
        let content = match source.format {
            ImageFormat::Idx => ImageContent::Idx(idx::IdxImages::open(paths, source.part, source.classes)?),
            ImageFormat::Folder => {
                ImageContent::Folder(folder::FolderImages::open(paths, source.part, source.classes)?)
            }
        };
        Ok(Self { source: source.clone(), seed, content })
    }

    /// Returns the number of images.
    pub(crate) fn count(&self) -> u64 {
        match &self.content {
            ImageContent::Idx(images) => images.count(),
            ImageContent::Folder(images) => images.count(),
        }
    }

    /// Returns the sizes of an image: channels, rows, columns.
    pub(crate) fn dimensions(&self) -> [usize; 3] {
        self.source.shape.dimensions()
    }

    /// Returns the number of classes.
    pub(crate) fn classes(&self) -> usize {
        self.source.classes
    }

    /// Returns image `index`, which must exist, as sample `sample`: its elements and its class.
    pub(crate) fn read(&self, index: u64, sample: u64) -> Result<(Vec<f32>, i32), DataError> {
        let channels = self.source.shape.channels;
        let (image, path, number, class) = match &self.content {
            ImageContent::Idx(images) => {
                let found = images.image(index);
                let image = folder::from_bytes(found.pixels, found.size, 1, channels);
                (image, found.path, found.number, i32::from(found.label))
            }
            ImageContent::Folder(images) => {
                let (image, path, class) = images.image(index, channels)?;
                (image, path, index, class as i32)
            }
        };
        let pixels = self.transformed(image, sample).map_err(|problem| self.error(path, number, problem))?;
        Ok((pixels, class))
    }

    fn transformed(&self, image: Image, sample: u64) -> Result<Vec<f32>, ImageProblem> {
        let key = key(self.seed ^ TRANSFORM_KEY, sample);
        let image = transform::apply(image, &self.source.transforms, key)?;
        let shape = self.source.shape;
        let expected = [shape.height, shape.width];
        if image.size != expected || image.channels != shape.channels {
            return Err(ImageProblem::WrongSize { found: image.size, expected });
        }
        Ok(image.pixels)
    }

    /// Names the file of an image, and its number in a file of several.
    fn error(&self, path: &Path, number: u64, problem: ImageProblem) -> DataError {
        match &self.content {
            ImageContent::Idx(_) => {
                let problem = SampleProblem::Image(problem);
                DataError::BadSample { path: path.into(), unit: "image", number, problem }
            }
            ImageContent::Folder(_) => DataError::Images { path: path.into(), problem },
        }
    }

    /// Adds everything that samples depend on to `hasher`; of directories, names instead of contents.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        hasher.update(format!("{:?}", self.source).as_bytes()).update(&self.seed.to_le_bytes());
        match &self.content {
            ImageContent::Idx(images) => images.hash(hasher),
            ImageContent::Folder(images) => images.hash(hasher),
        }
    }
}
