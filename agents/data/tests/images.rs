//! Tests of sources of images: idx files, and directories of PNG and JPEG files.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use image::{GrayImage, ImageFormat as FileFormat, RgbImage};
use millrace_data::{DataError, Dataset, SourceKind, SourceSpec};
use millrace_params::{ImageFormat, ImagePart, ImageShape, ImageSource, ImageTransform};

const NORMALIZE: ImageTransform = ImageTransform::Normalize { mean: Vec::new(), std: Vec::new() };

fn source(format: ImageFormat, part: ImagePart, channels: usize, transforms: &[ImageTransform]) -> ImageSource {
    let shape = ImageShape { channels, height: 3, width: 4 };
    ImageSource { format, part, shape, classes: 3, transforms: transforms.to_vec() }
}

fn spec(dir: &Path, images: ImageSource) -> SourceSpec {
    SourceSpec {
        shuffle_seed: 5,
        ..SourceSpec::new(SourceKind::Images { paths: vec![dir.display().to_string()], images }, 1)
    }
}

fn open(dir: &Path, images: ImageSource) -> Result<Dataset, DataError> {
    Dataset::open(&spec(dir, images), |_, _| {})
}

/// An idx file with these dimensions and elements.
fn idx(sizes: &[u32], elements: impl IntoIterator<Item = u8>) -> Vec<u8> {
    let header = [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes.iter().flat_map(|size| size.to_be_bytes()));
    header.chain(elements).collect()
}

/// Pixel `position` of image `number`.
fn pixel(number: usize, position: usize) -> u8 {
    ((number * 40 + position * 3) % 256) as u8
}

fn idx_images(count: u32) -> Vec<u8> {
    idx(&[count, 3, 4], (0..count as usize).flat_map(|number| (0..12).map(move |position| pixel(number, position))))
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// The elements of a sample: image and label.
fn sample(dataset: &Dataset, number: u64) -> (Vec<f32>, i32) {
    let arrays = dataset.read(number, 1).unwrap();
    let pixels = arrays[0].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    (pixels, i32::from_le_bytes(arrays[1].as_slice().try_into().unwrap()))
}

fn directory_with(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

#[test]
fn idx_files_are_read_plain_and_compressed() {
    let (images, labels) = (idx_images(5), idx(&[5], [0, 1, 2, 1, 0]));
    let plain = directory_with(&[("train-images-idx3-ubyte", &images), ("train-labels-idx1-ubyte", &labels)]);
    let packed = directory_with(&[
        ("MNIST/raw/t10k-images-idx3-ubyte.gz", &compressed(&images)),
        ("MNIST/raw/t10k-labels-idx1-ubyte.gz", &compressed(&labels)),
    ]);
    let normalize = ImageTransform::Normalize { mean: vec![0.25], std: vec![0.5] };
    let one =
        open(plain.path(), source(ImageFormat::Idx, ImagePart::Train, 1, std::slice::from_ref(&normalize))).unwrap();
    let other = open(packed.path(), source(ImageFormat::Idx, ImagePart::Validation, 1, &[normalize])).unwrap();
    assert_eq!((one.windows(), other.windows()), (5, 5));
    let inputs: Vec<_> = one.inputs().into_iter().map(|input| (input.name, input.shape)).collect();
    assert_eq!(inputs, [("image".to_owned(), vec![1, 3, 4]), ("labels".to_owned(), vec![])]);
    for number in 0..7 {
        let (pixels, label) = sample(&one, number);
        let image_number = number as usize % 5;
        assert_eq!(label, [0, 1, 2, 1, 0][image_number]);
        let expected = |position| (f32::from(pixel(image_number, position)) / 255.0 - 0.25) / 0.5;
        assert_eq!(pixels, (0..12).map(expected).collect::<Vec<_>>());
        assert_eq!(sample(&other, number), (pixels, label));
    }
    // A gray image has equal channels.
    let color = open(plain.path(), source(ImageFormat::Idx, ImagePart::Train, 3, &[NORMALIZE])).unwrap();
    let (pixels, _) = sample(&color, 2);
    assert_eq!((pixels.len(), &pixels[..12]), (36, &pixels[24..]));
}

#[test]
fn bad_idx_files_are_rejected_by_one_sentence() {
    let (images, labels) = (idx_images(5), idx(&[5], [0, 1, 2, 1, 0]));
    let gzip = compressed(&images);
    let huge = idx(&[u32::MAX, u32::MAX, 4], []);
    let cases: [(&[u8], &[u8], &str); 11] = [
        (&images[..images.len() - 1], &labels, "is truncated: it has 75 bytes of the 76"),
        (&images[..9], &labels, "is truncated: it has 9 bytes of the 16"),
        (&[images.as_slice(), &[0]].concat(), &labels, "has more bytes than the 76"),
        (&gzip[..gzip.len() / 2], &labels, "can't be decompressed"),
        (b"GIF89a and more bytes", &labels, "is no idx file of images"),
        (b"", &labels, "is no idx file of images"),
        (&huge, &labels, "at most"),
        (&images, &images, "is no idx file of labels"),
        (&images, &idx(&[4], [0; 4]), "has 4 labels for the 5 images"),
        (&images, &idx(&[5], [0, 1, 2, 3, 0]), "label 3 is not below the number of classes, 3"),
        (&idx(&[1, 4, 4], [0; 16]), &idx(&[1], [0]), "image 0 of"),
    ];
    for (images, labels, message) in cases {
        let dir = directory_with(&[("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)]);
        let error = open(dir.path(), source(ImageFormat::Idx, ImagePart::Train, 1, &[])).err().expect(message);
        assert!(error.to_string().contains(message), "{error} does not contain {message}");
        assert!(error.is_bad_input() && !error.hint().is_empty(), "{error}");
    }
    let empty = directory_with(&[]);
    let error = open(empty.path(), source(ImageFormat::Idx, ImagePart::Validation, 1, &[])).err().unwrap();
    assert!(error.to_string().contains("t10k-images-idx3-ubyte"), "{error}");
    let missing = open(&empty.path().join("no"), source(ImageFormat::Idx, ImagePart::Train, 1, &[])).err().unwrap();
    assert!(matches!(missing, DataError::NotFound { .. }), "{missing}");
}

fn png(value: u8, size: [u32; 2]) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    GrayImage::from_pixel(size[1], size[0], image::Luma([value])).write_to(&mut bytes, FileFormat::Png).unwrap();
    bytes.into_inner()
}

fn jpeg(value: [u8; 3]) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    RgbImage::from_pixel(4, 3, image::Rgb(value)).write_to(&mut bytes, FileFormat::Jpeg).unwrap();
    bytes.into_inner()
}

#[test]
fn classes_are_directories_of_png_and_jpeg_files() {
    let files = directory_with(&[
        ("train/cat/b.png", &png(51, [3, 4])),
        ("train/cat/a.PNG", &png(102, [6, 9])),
        ("train/cat/notes.txt", b"not an image"),
        ("train/dog/a.jpeg", &jpeg([255, 0, 0])),
        ("val/dog/a.png", &png(0, [3, 4])),
    ]);
    let resize = ImageTransform::Resize { size: [3, 4] };
    let read = |part, channels| {
        open(files.path(), source(ImageFormat::Folder, part, channels, std::slice::from_ref(&resize))).unwrap()
    };
    let (train, val) = (read(ImagePart::Train, 1), read(ImagePart::Validation, 3));
    assert_eq!((train.windows(), val.windows()), (3, 1));
    let close = |found: &[f32], expected: f32| found.iter().all(|x| (x - expected).abs() < 1e-6);
    let sample_of = |number| sample(&train, number);
    assert!(close(&sample_of(0).0, 0.4) && close(&sample_of(1).0, 0.2), "{:?} {:?}", sample_of(0), sample_of(1));
    assert_eq!([sample_of(0).1, sample_of(1).1, sample_of(2).1], [0, 0, 1]);
    // Its class has the number that it has among the training images.
    assert_eq!((sample(&val, 0).1, sample(&val, 0).0), (1, vec![0.0; 36]));
    let red = sample(&read(ImagePart::Train, 3), 2).0;
    assert!(red[..12].iter().all(|x| *x > 0.95) && red[12..].iter().all(|x| *x < 0.05), "{red:?}");
}

#[test]
fn bad_directories_and_images_are_named() {
    let truncated = png(9, [3, 4]);
    let mut wide_image = png(9, [3, 4]);
    // The width in the header, and a checksum that no longer matches: rejected before anything is allocated.
    wide_image[16..20].copy_from_slice(&u32::MAX.to_be_bytes());
    let valid = png(9, [3, 4]);
    for (files, part, message) in [
        (vec![("train/a/x.png", &truncated[..truncated.len() / 2])], ImagePart::Train, "x.png can't be decoded"),
        (vec![("train/a/x.png", wide_image.as_slice())], ImagePart::Train, "x.png can't be decoded"),
        (vec![("train/a/x.jpg", b"GIF89a".as_slice())], ImagePart::Train, "x.jpg can't be decoded"),
        (vec![("train/a/x.png", valid.as_slice())], ImagePart::Validation, "has no directory val"),
        (vec![("a/x.txt", b"x".as_slice())], ImagePart::Train, "no directory of a class"),
        (vec![("train/a/x.png", &valid), ("val/b/x.png", &valid)], ImagePart::Validation, "b is a class that"),
        (
            ["a/1.png", "b/1.png", "c/1.png", "d/1.png"].map(|name| (name, valid.as_slice())).into(),
            ImagePart::Train,
            "has 4 directories of classes, but model.num_classes is 3",
        ),
        (vec![("a/x.png", &png(0, [8, 8]))], ImagePart::Train, "x.png has an image of [8, 8]"),
    ] {
        let dir = directory_with(&files);
        let error = open(dir.path(), source(ImageFormat::Folder, part, 1, &[])).err().expect(message);
        assert!(error.to_string().contains(message), "{error} does not contain {message}");
        assert!(error.is_bad_input() && !error.hint().is_empty(), "{error}");
    }
}
