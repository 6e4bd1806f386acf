//! Resolves how images are read: the part of the data set, and the transforms.

use super::check::ResolveContext;
use super::image::pair;
use super::input_section::InputSection;
use crate::document::{ImageSize, ImageTransformParams};
use crate::job::{ImageFormat, ImageNetwork, ImagePart, ImageShape, ImageSource, ImageTransform, ModelSpec};
use crate::keywords::{INTERPOLATIONS, SPLIT_NAMES, SplitName, TRANSFORMS, TransformKind};
use crate::yaml::ParamsSection;

/// Mean and standard deviation of the pixels of the MNIST database.
const MNIST_NORMALIZATION: (f64, f64) = (0.1307, 0.3081);
/// Maximum transforms of an input.
const MAX_TRANSFORMS: usize = 64;

/// Resolves the source of images of a section, for a model that reads images.
pub(super) fn images(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    format: ImageFormat,
    model: &ModelSpec,
    is_evaluation: bool,
) -> ImageSource {
    let shape = model.image.as_ref().map_or(ImageShape { channels: 1, height: 1, width: 1 }, |image| image.shape);
    check_same_sizes(check, s, model, shape);
    let transforms = match &s.params.transforms {
        Some(list) if list.len() > MAX_TRANSFORMS => {
            let message = format!("has {} items", list.len());
            check.report_invalid(&s.key("transforms"), message, format!("give at most {MAX_TRANSFORMS}"));
            Vec::new()
        }
        Some(list) => list
            .iter()
            .enumerate()
            .filter_map(|(index, transform)| {
                let key = s.key(&format!("transforms.{index}"));
                self::transform(check, &key, transform, shape.channels)
            })
            .collect(),
        None => default_transforms(format, shape),
    };
    ImageSource { format, part: part(check, s, is_evaluation), shape, classes: model.vocab_size, transforms }
}

/// Checks that the sizes that some files repeat beside the data are those of the model.
fn check_same_sizes(check: &mut ResolveContext<'_>, s: &InputSection<'_>, model: &ModelSpec, shape: ImageShape) {
    if let Some(classes) = s.params.num_classes.filter(|classes| *classes != model.vocab_size as u64) {
        let message = format!("is {classes}, but model.num_classes is {}", model.vocab_size);
        check.report_invalid(&s.key("num_classes"), message, "leave it out");
    }
    check_same_pair(check, s, "image_size", s.params.image_size.as_deref(), [shape.height, shape.width]);
    if let Some(channels) = s.params.image_channels.filter(|channels| *channels != shape.channels as u64) {
        let message = format!("is {channels}, but model.num_channels is {}", shape.channels);
        check.report_invalid(&s.key("image_channels"), message, "leave it out");
    }
    if let Some(ImageNetwork::Transformer { patch_size, .. }) = model.image.as_ref().map(|image| &image.network) {
        check_same_pair(check, s, "patch_size", s.params.patch_size.as_deref(), *patch_size);
    }
}

/// Checks that rows and columns, if they are given beside the data, are those of the model.
fn check_same_pair(
    check: &mut ResolveContext<'_>,
    s: &InputSection<'_>,
    name: &str,
    value: Option<&[u64]>,
    of_model: [usize; 2],
) {
    let key = s.key(name);
    let of_input = pair(check, &key, value, of_model);
    if of_input != of_model && !check.has_problem(&key) {
        let message = format!("is {of_input:?}, but model.{name} is {of_model:?}");
        check.report_invalid(&key, message, "leave it out");
    }
}

fn part(check: &mut ResolveContext<'_>, s: &InputSection<'_>, is_evaluation: bool) -> ImagePart {
    let default = if is_evaluation { SplitName::Validation } else { SplitName::Train };
    match check.keyword(&s.key("split"), s.params.split.as_deref(), default, &SPLIT_NAMES) {
        SplitName::Train => ImagePart::Train,
        SplitName::Validation => ImagePart::Validation,
        SplitName::All => {
            check.unsupported(&s.key("split"), "all", "use train or val");
            ImagePart::Train
        }
    }
}

fn default_transforms(format: ImageFormat, shape: ImageShape) -> Vec<ImageTransform> {
    match format {
        ImageFormat::Idx => {
            let (mean, std) = MNIST_NORMALIZATION;
            vec![ImageTransform::Normalize { mean: vec![mean], std: vec![std] }]
        }
        ImageFormat::Folder => vec![
            ImageTransform::Resize { size: [shape.height, shape.width] },
            ImageTransform::Normalize { mean: vec![0.5], std: vec![0.5] },
        ],
    }
}

/// Resolves one transform; `None` if it has no effect or is rejected.
fn transform(
    check: &mut ResolveContext<'_>,
    key: &str,
    p: &ImageTransformParams,
    channels: usize,
) -> Option<ImageTransform> {
    let key_path = |name: &str| format!("{key}.{name}");
    let Some(name) = p.name.as_deref() else {
        check.report_missing(&key_path("name"), "name a transform, as in name: resize");
        return None;
    };
    let kind = check.keyword(&key_path("name"), Some(name), TransformKind::ToTensor, &TRANSFORMS);
    check.keyword(&key_path("interpolation"), p.interpolation.as_deref(), (), &INTERPOLATIONS);
    refuse_foreign_keys(check, key, p, name, kind);
    match kind {
        TransformKind::ToTensor => None,
        TransformKind::Resize => match p.size {
            Some(ImageSize::One(length)) => {
                let [length, _] = pair(check, &key_path("size"), Some(&[length, length]), [1, 1]);
                Some(ImageTransform::ResizeShorterSide { length })
            }
            _ => Some(ImageTransform::Resize { size: size(check, &key_path("size"), p) }),
        },
        TransformKind::CenterCrop => Some(ImageTransform::CenterCrop { size: size(check, &key_path("size"), p) }),
        TransformKind::RandomResizedCrop => Some(ImageTransform::RandomResizedCrop {
            size: size(check, &key_path("size"), p),
            scale: range(check, &key_path("scale"), p.scale.as_deref(), [0.08, 1.0], 1.0),
            ratio: range(check, &key_path("ratio"), p.ratio.as_deref(), [3.0 / 4.0, 4.0 / 3.0], 1e3),
        }),
        TransformKind::RandomHorizontalFlip => {
            let p = p.p.unwrap_or(0.5);
            if !(0.0..=1.0).contains(&p) {
                check.report_invalid(
                    &key_path("p"),
                    format!("is {p}, which is out of range"),
                    "give a number from 0 to 1",
                );
            }
            Some(ImageTransform::RandomHorizontalFlip { p })
        }
        TransformKind::Normalize => {
            let mean = numbers(check, &key_path("mean"), p.mean.as_deref(), channels, |_| true);
            let std = numbers(check, &key_path("std"), p.std.as_deref(), channels, |number| number > 0.0);
            Some(ImageTransform::Normalize { mean, std })
        }
    }
}

fn refuse_foreign_keys(
    check: &mut ResolveContext<'_>,
    key: &str,
    p: &ImageTransformParams,
    name: &str,
    kind: TransformKind,
) {
    let used: &[&str] = match kind {
        TransformKind::ToTensor => &["name"],
        TransformKind::Resize => &["name", "size", "interpolation"],
        TransformKind::CenterCrop => &["name", "size"],
        TransformKind::RandomResizedCrop => &["name", "size", "scale", "ratio", "interpolation"],
        TransformKind::RandomHorizontalFlip => &["name", "p"],
        TransformKind::Normalize => &["name", "mean", "std"],
    };
    if check.has_problem(&format!("{key}.name")) {
        return;
    }
    for argument in p.given_keys().into_iter().filter(|argument| !used.contains(argument)) {
        check.report_invalid(&format!("{key}.{argument}"), format!("has no meaning for {name}"), "leave it out");
    }
}

fn size(check: &mut ResolveContext<'_>, key: &str, p: &ImageTransformParams) -> [usize; 2] {
    match &p.size {
        None => {
            check.report_missing(key, "give the rows and columns of pixels");
            [1, 1]
        }
        Some(ImageSize::One(length)) => pair(check, key, Some(&[*length, *length]), [1, 1]),
        Some(ImageSize::Many(both)) => pair(check, key, Some(both), [1, 1]),
    }
}

/// Checks two ascending numbers greater than 0.
fn range(check: &mut ResolveContext<'_>, key: &str, value: Option<&[f64]>, default: [f64; 2], max: f64) -> [f64; 2] {
    match value {
        None => default,
        // Comparisons are false for NaN.
        Some(&[low, high]) if 0.0 < low && low <= high && high <= max => [low, high],
        Some(_) => {
            check.report_invalid(key, "is out of range", "give two ascending numbers greater than 0");
            default
        }
    }
}

/// Checks a number for each channel, or one for all.
fn numbers(
    check: &mut ResolveContext<'_>,
    key: &str,
    numbers: Option<&[f64]>,
    channels: usize,
    is_valid: impl Fn(f64) -> bool,
) -> Vec<f64> {
    let Some(numbers) = numbers else {
        check.report_missing(key, "give a number for each channel");
        return vec![1.0];
    };
    let is_count = numbers.len() == 1 || numbers.len() == channels;
    if !is_count || !numbers.iter().all(|&number| number.is_finite() && is_valid(number)) {
        let hint = format!("give {channels} numbers, one for each channel, or one number for all");
        check.report_invalid(key, "is out of range", hint);
    }
    numbers.to_vec()
}
