//! Directories with PNG and JPEG files, one for each class.
//!
//! ```text
//! DIRECTORY/train/CLASS/FILE.png     DIRECTORY/val/CLASS/FILE.jpg
//! DIRECTORY/CLASS/FILE.png           if there is neither train nor val
//! ```
//!
//! Classes are numbered in the order of the names of the directories of the training images; files are read in the
//! order of their names.

use std::collections::BTreeSet;
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};

use image::{ImageFormat, ImageReader, Limits};
use millrace_params::ImagePart;

use super::ImageProblem;
use super::transform::Image;
use crate::{DataError, files};

/// Maximum rows and columns of a stored image.
const MAX_SIDE_PIXELS: u32 = 1 << 14;
/// Maximum bytes that decoding an image may take: 64 million pixels of three channels.
const MAX_DECODED_BYTES: u64 = 192 << 20;
/// Maximum bytes of a file: many times those of any photograph of that size.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The files of a source.
pub(crate) struct FolderImages {
    files: Vec<ClassFile>,
}

struct ClassFile {
    path: PathBuf,
    class: u32,
}

impl FolderImages {
    /// Lists the files of `part` in these directories.
    pub(crate) fn open(paths: &[String], part: ImagePart, classes: usize) -> Result<Self, DataError> {
        let mut all = Vec::new();
        for path in paths {
            let path = Path::new(path);
            let error = |problem| DataError::Images { path: path.into(), problem };
            let (directory, names) = class_directories(path, part)?;
            if names.is_empty() {
                return Err(error(ImageProblem::NoClasses));
            }
            if names.len() > classes {
                return Err(error(ImageProblem::TooManyClasses { found: names.len(), classes }));
            }
            list_files(&directory, &names, &mut all)?;
        }
        match paths.first() {
            None => Err(DataError::NoPaths),
            Some(first) if all.is_empty() => {
                Err(DataError::Images { path: first.into(), problem: ImageProblem::NoClasses })
            }
            Some(_) => Ok(Self { files: all }),
        }
    }

    /// Returns the number of images.
    pub(crate) fn count(&self) -> u64 {
        self.files.len() as u64
    }

    /// Decodes image `index`, which must exist, with one or three channels; returns it with its file and class.
    pub(crate) fn image(&self, index: u64, channels: usize) -> Result<(Image, &Path, u32), DataError> {
        let file = &self.files[index as usize];
        let read = |source| DataError::Read { path: file.path.clone(), source };
        let mut bytes = Vec::new();
        let opened = millrace_roots::open(&file.path).map_err(read)?;
        BufReader::new(opened).take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(read)?;
        match decode(&bytes, channels) {
            Ok(image) => Ok((image, &file.path, file.class)),
            Err(problem) => Err(DataError::Images { path: file.path.clone(), problem }),
        }
    }

    /// Adds names and classes to `hasher`. The files, which may be too large to be read, are not part of it.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) {
        for file in &self.files {
            let name = file.path.file_name().unwrap_or_default();
            hasher.update(name.as_encoded_bytes()).update(&file.class.to_le_bytes());
        }
    }
}

/// Decodes a PNG or JPEG file to one channel (gray) or three. Its size is checked before it is decoded.
fn decode(bytes: &[u8], channels: usize) -> Result<Image, ImageProblem> {
    let undecodable = |error: &dyn std::fmt::Display| ImageProblem::Undecodable(error.to_string());
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| undecodable(&error))?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg)) {
        return Err(undecodable(&"it is neither PNG nor JPEG"));
    }
    let mut limits = Limits::no_limits();
    limits.max_image_width = Some(MAX_SIDE_PIXELS);
    limits.max_image_height = Some(MAX_SIDE_PIXELS);
    limits.max_alloc = Some(MAX_DECODED_BYTES);
    reader.limits(limits);
    let image = reader.decode().map_err(|error| undecodable(&error))?;
    let size = [image.height() as usize, image.width() as usize];
    let bytes = if channels == 1 { image.into_luma8().into_raw() } else { image.into_rgb8().into_raw() };
    let channels = if channels == 1 { 1 } else { 3 };
    Ok(from_bytes(&bytes, size, channels, channels))
}

/// Converts bytes, pixel by pixel with `stored` channels each, to an image of `channels`: the stored ones, or copies
/// of the only one.
pub(crate) fn from_bytes(bytes: &[u8], size: [usize; 2], stored: usize, channels: usize) -> Image {
    let plane = size[0].saturating_mul(size[1]);
    let mut pixels = Vec::with_capacity(channels * plane);
    for channel in 0..channels {
        let channel = bytes.iter().skip(channel.min(stored.saturating_sub(1))).step_by(stored.max(1));
        pixels.extend(channel.map(|&byte| f32::from(byte) / 255.0));
    }
    Image { channels, size, pixels }
}

/// Returns the directory of a part, and the names of the classes, in order.
fn class_directories(path: &Path, part: ImagePart) -> Result<(PathBuf, Vec<String>), DataError> {
    let names = directories(path)?;
    let has_directory = |name: &str| names.contains(name);
    if !has_directory("train") && !has_directory("val") {
        return Ok((path.into(), names.into_iter().collect()));
    }
    let (expected, found) = match part {
        ImagePart::Train => ("train", "val"),
        ImagePart::Validation => ("val", "train"),
    };
    if !has_directory(expected) {
        return Err(DataError::Images { path: path.into(), problem: ImageProblem::NoPart { expected, found } });
    }
    let names = directories(&path.join(expected))?;
    if part == ImagePart::Train || !has_directory("train") {
        return Ok((path.join(expected), names.into_iter().collect()));
    }
    let classes = directories(&path.join("train"))?;
    match names.iter().find(|name| !classes.contains(*name)) {
        Some(unknown) => {
            let path = path.join(expected).join(unknown);
            Err(DataError::Images { path, problem: ImageProblem::UnknownClass })
        }
        None => Ok((path.join(expected), classes.into_iter().collect())),
    }
}

/// Returns the names of the directories in `path`.
fn directories(path: &Path) -> Result<BTreeSet<String>, DataError> {
    let entries = millrace_roots::read_dir(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            DataError::NotFound { path: path.into(), cwd: files::working_directory() }
        }
        _ => DataError::Read { path: path.into(), source: error },
    })?;
    let names = entries.iter().filter(|entry| millrace_roots::is_dir(&entry.path)).map(|entry| entry.name().to_owned());
    Ok(names.filter(|name| !name.is_empty() && !name.starts_with('.')).collect())
}

/// Adds the files of each class that the directory has.
fn list_files(directory: &Path, classes: &[String], all: &mut Vec<ClassFile>) -> Result<(), DataError> {
    for (class, name) in classes.iter().enumerate() {
        let path = directory.join(name);
        let entries = match millrace_roots::read_dir(&path) {
            Ok(entries) => entries,
            // A class without images to evaluate on.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(DataError::Read { path, source }),
        };
        let mut files: Vec<PathBuf> =
            entries.into_iter().filter(|entry| is_image(entry.name())).map(|entry| entry.path).collect();
        files.sort();
        all.extend(files.into_iter().map(|path| ClassFile { path, class: class as u32 }));
    }
    Ok(())
}

fn is_image(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    ["png", "jpg", "jpeg"].iter().any(|known| known.eq_ignore_ascii_case(extension))
}
