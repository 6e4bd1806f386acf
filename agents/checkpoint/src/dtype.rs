//! Converts imported tensors to f32.

/// Appends little-endian `bytes` of the given safetensors type to `out` as f32; returns `false` for unsupported types.
/// f64 is rounded to nearest even; the others are exact.
pub(super) fn widen(dtype: &str, bytes: &[u8], out: &mut Vec<f32>) -> bool {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    match dtype {
        "F64" => out.extend(bytes.as_chunks::<8>().0.iter().map(|word| f64::from_le_bytes(*word) as f32)),
        "F32" => out.extend(bytes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word))),
        "BF16" => out.extend(halves().map(|half| f32::from_bits(u32::from(half) << 16))),
        "F16" => out.extend(halves().map(from_f16)),
        _ => return false,
    }
    true
}

/// Converts IEEE 754 binary16: 1 sign bit, 5 exponent bits with bias 15, 10 fraction bits.
fn from_f16(half: u16) -> f32 {
    let half = u32::from(half);
    let (sign, exponent, fraction) = ((half >> 15) << 31, (half >> 10) & 31, half & 1023);
    match exponent {
        // Zero and subnormals: fraction x 2^-24, exact in f32.
        0 => {
            let magnitude = fraction as f32 / 16_777_216.0;
            f32::from_bits(sign | magnitude.to_bits())
        }
        // Infinities and NaNs keep their fraction.
        31 => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_widen_to_the_value_their_bits_mean() {
        for half in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 1023));
            let sign = if half >> 15 == 1 { -1.0 } else { 1.0 };
            let expected = match exponent {
                31 if fraction == 0.0 => sign * f64::INFINITY,
                31 => f64::NAN,
                0 => sign * fraction * 2f64.powi(-24),
                _ => sign * (1.0 + fraction / 1024.0) * 2f64.powi(exponent - 15),
            };
            let found = from_f16(half);
            assert!(found.is_nan() == expected.is_nan(), "{half:#x}");
            assert!(expected.is_nan() || f64::from(found) == expected && found.is_sign_negative() == (half >> 15 == 1));
        }
        let mut out = Vec::new();
        assert!(widen("BF16", &[0x80, 0x3f, 0x00, 0xc0], &mut out) && !widen("I64", &[0; 8], &mut out));
        assert_eq!(out, [1.0, -2.0]);
    }
}
