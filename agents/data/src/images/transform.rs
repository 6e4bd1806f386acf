//! Applies transforms to an image. A random transform is a function of a key.
//!
//! Only additions, products, quotients and square roots of IEEE 754 are used, in a fixed order, so that all machines
//! get the same bits.

use millrace_params::ImageTransform;

use super::ImageProblem;
use crate::permute::{SPLITMIX64_INCREMENT, splitmix64};

/// Number of random crops that are tried before the center is taken, as in torchvision.
const CROP_ATTEMPTS: u64 = 10;
/// Draws that one transform may use.
const DRAWS_PER_TRANSFORM: u64 = 64;

/// An image: pixels from 0 to 1, channel by channel, each line by line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Image {
    pub channels: usize,
    /// Rows and columns.
    pub size: [usize; 2],
    pub pixels: Vec<f32>,
}

/// A rectangle of an image: first row and column, rows and columns.
#[derive(Clone, Copy)]
struct Region {
    origin: [usize; 2],
    size: [usize; 2],
}

/// Applies `transforms` in order. `key` determines the random ones.
pub(crate) fn apply(mut image: Image, transforms: &[ImageTransform], key: u64) -> Result<Image, ImageProblem> {
    for (index, transform) in transforms.iter().enumerate() {
        let first = index as u64 * DRAWS_PER_TRANSFORM;
        let draw = |number: u64| uniform(key, first + number);
        let full = Region { origin: [0, 0], size: image.size };
        image = match transform {
            ImageTransform::Resize { size } => scaled(&image, full, *size),
            ImageTransform::ResizeShorterSide { length } => {
                let size = with_shorter_side(image.size, *length);
                scaled(&image, full, size)
            }
            ImageTransform::CenterCrop { size } => center_crop(&image, *size)?,
            ImageTransform::RandomResizedCrop { size, scale, ratio } => {
                let region = random_region(image.size, *scale, *ratio, draw);
                scaled(&image, region, *size)
            }
            ImageTransform::RandomHorizontalFlip { p } => {
                if draw(0) < *p {
                    image.pixels.chunks_exact_mut(image.size[1].max(1)).for_each(<[f32]>::reverse);
                }
                image
            }
            ImageTransform::Normalize { mean, std } => {
                normalize(&mut image, mean, std);
                image
            }
        };
    }
    Ok(image)
}

/// Returns number `number` of the draws of `key`, in [0, 1).
fn uniform(key: u64, number: u64) -> f64 {
    let bits = splitmix64(key.wrapping_add((number + 1).wrapping_mul(SPLITMIX64_INCREMENT)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn normalize(image: &mut Image, mean: &[f64], std: &[f64]) {
    let of_channel = |numbers: &[f64], channel: usize| numbers[channel.min(numbers.len() - 1)] as f32;
    if mean.is_empty() || std.is_empty() {
        return;
    }
    let plane = (image.size[0] * image.size[1]).max(1);
    for (channel, pixels) in image.pixels.chunks_exact_mut(plane).enumerate() {
        let (mean, std) = (of_channel(mean, channel), of_channel(std, channel));
        pixels.iter_mut().for_each(|pixel| *pixel = (*pixel - mean) / std);
    }
}

/// Returns the size of an image of the same proportions whose shorter side has this length; rounded down, as in
/// torchvision. The longer side is at most 1,000 times longer.
fn with_shorter_side([rows, columns]: [usize; 2], length: usize) -> [usize; 2] {
    let longer = |side: usize, shorter: usize| (length.saturating_mul(side) / shorter.max(1)).min(length * 1000).max(1);
    if rows <= columns { [length, longer(columns, rows)] } else { [longer(rows, columns), length] }
}

fn center_crop(image: &Image, size: [usize; 2]) -> Result<Image, ImageProblem> {
    if size[0] > image.size[0] || size[1] > image.size[1] {
        return Err(ImageProblem::SmallerThanCrop { found: image.size, expected: size });
    }
    let origin = [(image.size[0] - size[0]) / 2, (image.size[1] - size[1]) / 2];
    let mut pixels = Vec::with_capacity(image.channels * size[0] * size[1]);
    for line in (0..image.channels).flat_map(|channel| (0..size[0]).map(move |row| (channel, row))) {
        let start = (line.0 * image.size[0] + origin[0] + line.1) * image.size[1] + origin[1];
        pixels.extend_from_slice(&image.pixels[start..start + size[1]]);
    }
    Ok(Image { channels: image.channels, size, pixels })
}

/// Returns a random part with a share of the area in `scale` and a quotient of width and height in `ratio`.
fn random_region([rows, columns]: [usize; 2], scale: [f64; 2], ratio: [f64; 2], draw: impl Fn(u64) -> f64) -> Region {
    let area = rows as f64 * columns as f64;
    for attempt in 0..CROP_ATTEMPTS {
        let draw = |number: u64| draw(4 * attempt + number);
        let part = area * (scale[0] + (scale[1] - scale[0]) * draw(0));
        let quotient = ratio[0] * power(ratio[1] / ratio[0], draw(1));
        let size = [(part / quotient).sqrt().round() as usize, (part * quotient).sqrt().round() as usize];
        if (1..=rows).contains(&size[0]) && (1..=columns).contains(&size[1]) {
            let offset = |free: usize, fraction: f64| ((free + 1) as f64 * fraction) as usize;
            let origin = [offset(rows - size[0], draw(2)), offset(columns - size[1], draw(3))];
            return Region { origin: [origin[0].min(rows - size[0]), origin[1].min(columns - size[1])], size };
        }
    }
    // The largest centered part whose quotient is in the range.
    let quotient = columns as f64 / rows as f64;
    let size = if quotient < ratio[0] {
        [((columns as f64 / ratio[0]).round() as usize).clamp(1, rows), columns]
    } else if quotient > ratio[1] {
        [rows, ((rows as f64 * ratio[1]).round() as usize).clamp(1, columns)]
    } else {
        [rows, columns]
    };
    Region { origin: [(rows - size[0]) / 2, (columns - size[1]) / 2], size }
}

/// Returns `base` to the power of `exponent`, which is in [0, 1), by square roots, which are exact on all machines.
fn power(base: f64, exponent: f64) -> f64 {
    let (mut root, mut rest, mut result) = (base, exponent, 1.0);
    for _ in 0..32 {
        root = root.sqrt();
        rest *= 2.0;
        if rest >= 1.0 {
            rest -= 1.0;
            result *= root;
        }
    }
    result
}

/// Scales a part of an image. Each pixel is a mean of the pixels around its place, with weights that decrease linearly:
/// to zero at a distance of one pixel of the part or of the result, whichever is larger.
fn scaled(image: &Image, region: Region, size: [usize; 2]) -> Image {
    let [rows, columns] = [0, 1].map(|axis| weights(region.origin[axis], region.size[axis], size[axis]));
    let mut pixels = Vec::with_capacity(image.channels * size[0] * size[1]);
    let plane = (image.size[0] * image.size[1]).max(1);
    for channel in image.pixels.chunks_exact(plane) {
        // First along the rows, of which only those of the region are needed.
        let mut narrow = vec![0.0f32; region.size[0] * size[1]];
        for (row, out) in narrow.chunks_exact_mut(size[1].max(1)).enumerate() {
            let line = &channel[(region.origin[0] + row) * image.size[1]..][..image.size[1]];
            for (out, (first, weights)) in out.iter_mut().zip(&columns) {
                *out = line[*first..].iter().zip(weights).map(|(pixel, weight)| pixel * weight).sum();
            }
        }
        for (first, weights) in &rows {
            let first = first - region.origin[0];
            for column in 0..size[1] {
                let lines = narrow[first * size[1] + column..].iter().step_by(size[1]);
                pixels.push(lines.zip(weights).map(|(pixel, weight)| pixel * weight).sum());
            }
        }
    }
    Image { channels: image.channels, size, pixels }
}

/// Returns for each pixel of the result the first pixel that it is a mean of, and the weights.
fn weights(origin: usize, length: usize, result: usize) -> Vec<(usize, Vec<f32>)> {
    let step = length as f64 / result as f64;
    let reach = step.max(1.0);
    let pixel = |result_index: usize| {
        let center = (result_index as f64 + 0.5) * step;
        let first = (center - reach + 0.5).max(0.0) as usize;
        let end = ((center + reach + 0.5) as usize).clamp(first + 1, length.max(first + 1));
        let weight = |result_index: usize| (1.0 - ((result_index as f64 + 0.5 - center) / reach).abs()).max(0.0);
        let sum: f64 = (first..end).map(weight).sum();
        let weights =
            (first..end).map(|result_index| if sum > 0.0 { (weight(result_index) / sum) as f32 } else { 1.0 });
        (origin + first, weights.collect())
    };
    (0..result).map(pixel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(size: [usize; 2], pixel: impl Fn(usize, usize) -> f32) -> Image {
        let positions = (0..size[0]).flat_map(|row| (0..size[1]).map(move |column| (row, column)));
        Image { channels: 1, size, pixels: positions.map(|(row, column)| pixel(row, column)).collect() }
    }

    fn transformed(image: &Image, transform: ImageTransform, key: u64) -> Image {
        apply(image.clone(), &[transform], key).unwrap()
    }

    /// Values of `torch.nn.functional.interpolate(mode="bilinear", antialias=True)`.
    #[test]
    fn scaling_agrees_with_torch() {
        let ramp = image([1, 4], |_, column| column as f32);
        let narrow = transformed(&ramp, ImageTransform::Resize { size: [1, 2] }, 0);
        let widened = transformed(&ramp, ImageTransform::Resize { size: [1, 8] }, 0);
        let close = |found: &[f32], expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} for {expected:?}");
        };
        close(&narrow.pixels, &[0.714_285_7, 2.285_714_4]);
        close(&widened.pixels, &[0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]);
        let image_5x7 = image([5, 7], |row, column| (row * column) as f32);
        assert_eq!(transformed(&image_5x7, ImageTransform::Resize { size: [5, 7] }, 0), image_5x7);
    }

    #[test]
    fn crops_and_flips_are_a_function_of_the_key() {
        let ramp = image([9, 12], |row, column| (row * 12 + column) as f32);
        let crop = ImageTransform::RandomResizedCrop { size: [4, 5], scale: [0.1, 0.6], ratio: [0.75, 1.5] };
        let cropped = |key| transformed(&ramp, crop.clone(), key);
        assert_eq!((cropped(3), cropped(3).size), (cropped(3), [4, 5]));
        assert_ne!(cropped(3), cropped(4));
        assert!((0..200).all(|key| cropped(key).pixels.iter().all(|pixel| (-1e-3..107.01).contains(pixel))));
        let flips = |p| {
            let flip = ImageTransform::RandomHorizontalFlip { p };
            (0..400).filter(|key| transformed(&ramp, flip.clone(), *key) != ramp).count()
        };
        assert_eq!((flips(0.0), flips(1.0)), (0, 400));
        assert!((80..120).contains(&flips(0.25)), "{}", flips(0.25));
        let extreme = ImageTransform::RandomResizedCrop { size: [2, 2], scale: [1.0, 1.0], ratio: [9.0, 9.0] };
        assert_eq!(transformed(&ramp, extreme, 1).size, [2, 2]);
    }

    #[test]
    fn shorter_side_and_center_are_those_of_torchvision() {
        let tall = image([10, 6], |row, _| row as f32);
        let small = transformed(&tall, ImageTransform::ResizeShorterSide { length: 3 }, 0);
        assert_eq!(small.size, [5, 3]);
        let crop = ImageTransform::CenterCrop { size: [2, 2] };
        assert_eq!(transformed(&tall, crop.clone(), 0).pixels, [4.0, 4.0, 5.0, 5.0]);
        assert!(matches!(apply(image([1, 9], |_, _| 0.0), &[crop], 0), Err(ImageProblem::SmallerThanCrop { .. })));
        let normalize = ImageTransform::Normalize { mean: vec![0.5], std: vec![0.25] };
        assert_eq!(transformed(&image([1, 2], |_, column| column as f32), normalize, 0).pixels, [-2.0, 2.0]);
    }
}
