//! Files of the MNIST database: `train-images-idx3-ubyte` and `train-labels-idx1-ubyte` with images to train on,
//! `t10k-...` with those to evaluate on. Each may be compressed (`.gz`).
//!
//! ```text
//! 00 00 08 D   D big-endian u32 sizes (8: elements of one byte)   elements
//! ```
//!
//! Guarantees: the whole file is read and compared with its header, and every label is below the number of classes,
//! when the source is opened.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use millrace_params::ImagePart;

use super::ImageProblem;
use crate::hdf5::SampleProblem;
use crate::{DataError, files};

/// Maximum bytes of the content of a file: of all images of the MNIST database, 47 million.
const MAX_CONTENT_BYTES: u64 = 1 << 32;
const GZIP_SIGNATURE: [u8; 2] = [0x1f, 0x8b];

/// Images and labels of all files of a source.
pub(crate) struct IdxImages {
    files: Vec<IdxFile>,
}

struct IdxFile {
    path: PathBuf,
    /// Number of the first image after this file.
    end: u64,
    /// Rows and columns of an image.
    size: [usize; 2],
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

/// An image of a source.
pub(crate) struct IdxImage<'a> {
    pub path: &'a Path,
    /// Its number in the file.
    pub number: u64,
    pub size: [usize; 2],
    pub pixels: &'a [u8],
    pub label: u8,
}

impl IdxImages {
    /// Reads the files of `part` in these directories, or files of images named explicitly.
    pub(crate) fn open(paths: &[String], part: ImagePart, classes: usize) -> Result<Self, DataError> {
        let mut files: Vec<IdxFile> = Vec::with_capacity(paths.len());
        for path in paths {
            let [images, labels] = find(Path::new(path), part)?;
            let begin = files.last().map_or(0, |file| file.end);
            files.push(read_pair(images, &labels, begin, classes)?);
        }
        if files.is_empty() { Err(DataError::NoPaths) } else { Ok(Self { files }) }
    }

    /// Returns the number of images.
    pub(crate) fn count(&self) -> u64 {
        self.files.last().map_or(0, |file| file.end)
    }

    /// Returns image `image`, which must exist.
    pub(crate) fn image(&self, image: u64) -> IdxImage<'_> {
        let index = self.files.partition_point(|file| file.end <= image);
        let begin = index.checked_sub(1).map_or(0, |previous| self.files[previous].end);
        let (file, number) = (&self.files[index], (image - begin) as usize);
        let length = file.size[0] * file.size[1];
        IdxImage {
            path: &file.path,
            number: number as u64,
            size: file.size,
            pixels: &file.pixels[number * length..][..length],
            label: file.labels[number],
        }
    }

    /// Adds everything that is read to `hasher`.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        for file in &self.files {
            let [rows, columns] = file.size.map(|size| (size as u64).to_le_bytes());
            hasher.update(&file.end.to_le_bytes()).update(&rows).update(&columns);
            hasher.update(&file.pixels).update(&file.labels);
        }
    }
}

/// Returns the files of images and labels in a directory, or for a file of images that file and the one of its labels.
fn find(path: &Path, part: ImagePart) -> Result<[PathBuf; 2], DataError> {
    let metadata = match millrace_roots::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(DataError::NotFound { path: path.into(), cwd: files::working_directory() });
        }
        Err(source) => return Err(DataError::Read { path: path.into(), source }),
    };
    if metadata.is_file() {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let labels = name.replace("images", "labels").replace("idx3", "idx1");
        return Ok([path.to_owned(), path.with_file_name(labels)]);
    }
    let (prefix, expected) = match part {
        ImagePart::Train => ("train", "train-images-idx3-ubyte and train-labels-idx1-ubyte"),
        ImagePart::Validation => ("t10k", "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"),
    };
    for directory in [path.to_owned(), path.join("MNIST/raw"), path.join("raw")] {
        for (separator, suffix) in [("-", ""), ("-", ".gz"), (".", ""), (".", ".gz")] {
            let name =
                |kind, dimensions| directory.join(format!("{prefix}-{kind}{separator}idx{dimensions}-ubyte{suffix}"));
            let files = [name("images", 3), name("labels", 1)];
            if files.iter().all(millrace_roots::is_file) {
                return Ok(files);
            }
        }
    }
    Err(DataError::Images { path: path.into(), problem: ImageProblem::NoIdxFiles { expected } })
}

fn read_pair(images: PathBuf, labels: &Path, begin: u64, classes: usize) -> Result<IdxFile, DataError> {
    let read = |path: &Path, is_image: bool| {
        let file = millrace_roots::open(path).map_err(|source| DataError::Read { path: path.into(), source })?;
        parse(file, is_image).map_err(|error| match error {
            IdxError::Read(source) => DataError::Read { path: path.into(), source },
            IdxError::Problem(problem) => DataError::Images { path: path.into(), problem },
        })
    };
    let (image_sizes, pixels) = read(&images, true)?;
    let (label_sizes, label_bytes) = read(labels, false)?;
    let [count, size @ ..] = image_sizes;
    if label_sizes[0] != count {
        let problem = ImageProblem::CountsDiffer { images: count as u64, labels: label_sizes[0] as u64 };
        return Err(DataError::Images { path: labels.into(), problem });
    }
    if let Some(number) = label_bytes.iter().position(|&label| usize::from(label) >= classes) {
        let problem = SampleProblem::LabelOutsideClasses { label: label_bytes[number].into(), classes };
        return Err(DataError::BadSample { path: labels.into(), unit: "label", number: number as u64, problem });
    }
    Ok(IdxFile { path: images, end: begin.saturating_add(count as u64), size, pixels, labels: label_bytes })
}

/// Why a file can't be read.
#[derive(Debug)]
enum IdxError {
    Read(io::Error),
    Problem(ImageProblem),
}

impl From<ImageProblem> for IdxError {
    fn from(problem: ImageProblem) -> Self {
        Self::Problem(problem)
    }
}

/// Reads an idx file of images (three dimensions) or labels (one): its sizes, 1 where it has no dimension, and its
/// elements. Memory is allocated as bytes arrive, not as the header promises.
fn parse(mut file: impl Read, is_image: bool) -> Result<([usize; 3], Vec<u8>), IdxError> {
    let mut signature = Vec::new();
    (&mut file).take(2).read_to_end(&mut signature).map_err(IdxError::Read)?;
    let is_compressed = signature == GZIP_SIGNATURE;
    let content = io::Cursor::new(signature).chain(file);
    if is_compressed {
        // Errors of the file and of its compression can't be told apart here; the latter are more likely.
        let failed = |error| IdxError::Problem(ImageProblem::Compression(error));
        parse_content(MultiGzDecoder::new(content), is_image, failed)
    } else {
        parse_content(content, is_image, IdxError::Read)
    }
}

fn parse_content(
    mut file: impl Read,
    is_image: bool,
    failed: impl Fn(io::Error) -> IdxError,
) -> Result<([usize; 3], Vec<u8>), IdxError> {
    let (kind, dimensions) = if is_image { ("images", 3) } else { ("labels", 1) };
    let header_bytes = 4 + 4 * dimensions;
    let mut header = Vec::new();
    (&mut file).take(header_bytes as u64).read_to_end(&mut header).map_err(&failed)?;
    let expected = [0, 0, 8, dimensions as u8];
    let signature = header.get(..4).unwrap_or(&header);
    if signature != expected {
        return Err(ImageProblem::NotIdx { kind, found: signature.to_vec(), expected }.into());
    }
    if header.len() < header_bytes {
        let (bytes, expected) = (header.len() as u64, header_bytes as u64);
        return Err(ImageProblem::Truncated { bytes, expected }.into());
    }
    let mut sizes = [1; 3];
    for (size, bytes) in sizes.iter_mut().zip(header[4..].as_chunks::<4>().0) {
        *size = u32::from_be_bytes(*bytes) as usize;
    }
    let content = sizes.iter().fold(1u64, |product, &size| product.saturating_mul(size as u64));
    if content > MAX_CONTENT_BYTES {
        return Err(ImageProblem::TooLarge { bytes: content, max: MAX_CONTENT_BYTES }.into());
    }
    let mut elements = Vec::new();
    (&mut file).take(content + 1).read_to_end(&mut elements).map_err(&failed)?;
    let (bytes, expected) = ((header_bytes + elements.len()) as u64, header_bytes as u64 + content);
    match bytes.cmp(&expected) {
        std::cmp::Ordering::Less => Err(ImageProblem::Truncated { bytes, expected }.into()),
        std::cmp::Ordering::Greater => Err(ImageProblem::TooLong { expected }.into()),
        std::cmp::Ordering::Equal => Ok((sizes, elements)),
    }
}
