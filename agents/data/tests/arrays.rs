//! Tests of samples that consist of NumPy arrays.

use std::path::Path;

use millrace_data::{Dataset, ElementType, SourceKind, SourceSpec, SplitPart, inspect};

/// A NumPy file of elements of this type and shape.
fn npy(element_type: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let description = format!("{{'descr': '{element_type}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (description.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &length, description.as_bytes(), elements].concat()
}

fn write(dir: &Path, name: &str, content: &[u8]) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join(name), content).unwrap();
}

fn spec(directories: &[&Path]) -> SourceSpec {
    let paths = directories.iter().map(|path| path.display().to_string()).collect();
    SourceSpec::new(SourceKind::Arrays { paths }, 1)
}

/// The bytes of numbers, little-endian.
macro_rules! bytes {
    ($($number:expr),*) => { [$($number.to_le_bytes().as_slice()),*].concat() };
}

/// Two directories, of three samples and of one.
fn two_directories() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, shape, images, labels) in [
        ("a", 3, bytes![0.5f64, 1.0f64, 1.5f64, 2.0f64, 2.5f64, 3.0f64], bytes![7i64, -1i64, 9i64]),
        ("b", 1, bytes![3.5f64, 4.0f64], bytes![4i64]),
    ] {
        let dir = dir.path().join(name);
        write(&dir, "image.npy", &npy("<f8", &format!("({shape}, 2)"), &images));
        write(&dir, "labels.npy", &npy("<i8", &format!("({shape},)"), &labels));
        write(&dir, "notes.txt", b"not an array");
    }
    dir
}

/// The samples of a pass: image and label.
fn samples(spec: &SourceSpec) -> Vec<([f32; 2], i32)> {
    let dataset = Dataset::open(spec, |_, _| {}).unwrap();
    let sample = |number| {
        let arrays = dataset.read(number, 1).unwrap();
        let [image, label] = arrays.try_into().unwrap();
        let image = [0, 1].map(|index| f32::from_le_bytes(image[4 * index..][..4].try_into().unwrap()));
        (image, i32::from_le_bytes(label.try_into().unwrap()))
    };
    (0..dataset.windows()).map(sample).collect()
}

#[test]
fn arrays_of_several_directories_are_samples_in_order() {
    let dir = two_directories();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let all = [([0.5, 1.0], 7), ([1.5, 2.0], -1), ([2.5, 3.0], 9), ([3.5, 4.0], 4)];
    let full = spec(&[&a, &b]);
    assert_eq!(samples(&full), all);
    let inputs = Dataset::open(&full, |_, _| {}).unwrap().inputs();
    let described: Vec<_> = inputs.iter().map(|input| (&*input.name, input.element_type, &*input.shape)).collect();
    assert_eq!(described, [("image", ElementType::F32, [2].as_slice()), ("labels", ElementType::I32, &[])]);
    let found = inspect(&full).unwrap();
    let bytes = |path: &Path| ["image.npy", "labels.npy"].map(|name| path.join(name).metadata().unwrap().len());
    let size = [bytes(&a), bytes(&b)].concat().iter().sum();
    assert_eq!((found.files, found.bytes, found.samples), (4, size, Some(4)));

    let validation = SourceSpec { split: SplitPart::Validation, validation_fraction: 0.25, ..full.clone() };
    assert_eq!(samples(&validation), all[3..]);
    let shuffled = SourceSpec { shuffle: true, ..full.clone() };
    let mut sorted = samples(&shuffled);
    assert_ne!(sorted, all);
    sorted.sort_by_key(|(image, _)| image[0].to_bits());
    assert_eq!(sorted, all);
    let fingerprint = |spec: &SourceSpec| Dataset::open(spec, |_, _| {}).unwrap().fingerprint();
    assert_ne!(fingerprint(&full), fingerprint(&shuffled));
    assert_ne!(fingerprint(&full), fingerprint(&spec(&[&a])));
}

#[test]
fn every_type_of_numbers_is_converted() {
    for (element_type, elements, expected) in [
        ("<f4", bytes![0.25f32], 0.25f32.to_bits() as i32),
        ("|b1", vec![1], 1),
        ("|u1", vec![200], 200),
        ("|i1", bytes![-3i8], -3),
        ("<i2", bytes![-300i16], -300),
        ("<u2", bytes![60_000u16], 60_000),
        ("<i4", bytes![-70_000i32], -70_000),
        ("<u4", bytes![70_000u32], 70_000),
        ("<u8", bytes![70_000u64], 70_000),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "x.npy", &npy(element_type, "(1,)", &elements));
        let dataset = Dataset::open(&spec(&[dir.path()]), |_, _| {}).unwrap();
        assert_eq!(dataset.read(0, 1).unwrap(), [expected.to_le_bytes()], "{element_type}");
    }
}

#[test]
fn arrays_that_can_not_be_samples_are_named() {
    let check_error = |files: &[(&str, Vec<u8>)], part: &str| {
        let dir = two_directories();
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        files.iter().for_each(|(name, content)| write(&other, name, content));
        let found = Dataset::open(&spec(&[&dir.path().join("a"), &other]), |_, _| {}).err().unwrap().to_string();
        assert!(found.contains(part), "{found} does not contain {part:?}");
    };
    let image = || ("image.npy", npy("<f4", "(1, 2)", &[0; 8]));
    check_error(&[], "contains no .npy file");
    check_error(&[image()], "other names, types or shapes");
    check_error(&[image(), ("labels.npy", npy("<i4", "(2,)", &[0; 8]))], "labels has 2, and the first array 1");
    check_error(&[image(), ("labels.npy", npy("<i4", "()", &[0; 4]))], "is a single number");
    check_error(&[image(), ("labels.npy", npy("<f2", "(1,)", &[0; 2]))], "elements of type <f2");
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "x.npy", &npy("<i8", "(2,)", &bytes![1i64, 1i64 << 31]));
    let dataset = Dataset::open(&spec(&[dir.path()]), |_, _| {}).unwrap();
    let error = dataset.read(1, 1).unwrap_err().to_string();
    assert!(error.starts_with("sample 1 of ") && error.contains("2147483648, which does not have 32"), "{error}");
}
