//! Reasons why a file of images can't be used.

/// What is wrong with a file of images, as the end of a sentence that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ImageProblem {
    #[error("is no idx file of {kind}: it begins with {found:02x?}; expected {expected:02x?}")]
    NotIdx { kind: &'static str, found: Vec<u8>, expected: [u8; 4] },
    #[error("is truncated: it has {bytes} bytes of the {expected} that its header states")]
    Truncated { bytes: u64, expected: u64 },
    #[error("has more bytes than the {expected} that its header states")]
    TooLong { expected: u64 },
    #[error("states {bytes} bytes of content; at most {max} are supported")]
    TooLarge { bytes: u64, max: u64 },
    #[error("can't be decompressed: {0}")]
    Compression(std::io::Error),
    #[error("has {labels} labels for the {images} images of the file beside it")]
    CountsDiffer { images: u64, labels: u64 },
    #[error("has an image of {found:?} rows and columns after all transforms, but model.image_size is {expected:?}")]
    WrongSize { found: [usize; 2], expected: [usize; 2] },
    #[error("has an image of {found:?} rows and columns, smaller than a crop of {expected:?}")]
    SmallerThanCrop { found: [usize; 2], expected: [usize; 2] },
    #[error("has no files {expected}, neither in it nor in MNIST/raw below it")]
    NoIdxFiles { expected: &'static str },
    #[error("has no directory {expected} beside {found}")]
    NoPart { expected: &'static str, found: &'static str },
    #[error("has no directory of a class with PNG or JPEG files")]
    NoClasses,
    #[error("has {found} directories of classes, but model.num_classes is {classes}")]
    TooManyClasses { found: usize, classes: usize },
    #[error("is a class that the directory of the training images does not have")]
    UnknownClass,
    #[error("can't be decoded: {0}")]
    Undecodable(String),
}

impl ImageProblem {
    /// Returns what the user can do about it.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::NotIdx { .. } => {
                "name files of the MNIST database: images of type ubyte with three dimensions, labels with one"
            }
            Self::Truncated { .. } | Self::TooLong { .. } | Self::Compression(_) | Self::Undecodable(_) => {
                "copy or write the file again"
            }
            Self::TooLarge { .. } => "divide the images among several files",
            Self::CountsDiffer { .. } => "put files that belong together into a directory",
            Self::WrongSize { .. } | Self::SmallerThanCrop { .. } => {
                "set model.image_size, or add a transform resize to transforms"
            }
            Self::NoIdxFiles { .. } => "name the directory of the files, which may end in .gz",
            Self::NoPart { .. } | Self::NoClasses => {
                "name a directory that has train and val with a directory for each class"
            }
            Self::TooManyClasses { .. } => "set model.num_classes to the number of directories",
            Self::UnknownClass => "add images of this class to the training images",
        }
        .to_owned()
    }
}
