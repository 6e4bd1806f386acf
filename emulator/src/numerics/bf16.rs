//! bf16: the upper half of an f32.
//!
//! Conversion from f32 rounds to nearest, ties to even; a NaN remains a (quiet) NaN. Conversion to f32 is exact.

/// `x` rounded to bf16, as its 16 bits.
#[inline(always)]
pub const fn from_f32(x: f32) -> u16 {
    (round_bits(x.to_bits()) >> 16) as u16
}

/// Returns the f32 value of a bf16.
#[inline(always)]
pub const fn to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// `x` rounded to bf16 and widened again.
#[inline(always)]
pub const fn round(x: f32) -> f32 {
    f32::from_bits(round_bits(x.to_bits()))
}

/// Bits of an f32 rounded to its upper half, the lower half cleared.
#[inline(always)]
const fn round_bits(bits: u32) -> u32 {
    let nearest = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    // Rounding could carry a NaN's mantissa into infinity: keep its upper bits and make it quiet.
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if nan { bits | 0x0040_0000 } else { nearest }) & 0xffff_0000
}

/// Rounds `src` to bf16.
///
/// # Panics
/// If the lengths differ.
pub fn from_f32_slice(src: &[f32], dst: &mut [u16]) {
    assert_eq!(src.len(), dst.len());
    for (d, s) in dst.iter_mut().zip(src) {
        *d = from_f32(*s);
    }
}

/// Widens bf16 to f32.
///
/// # Panics
/// If the lengths differ.
pub fn to_f32_slice(src: &[u16], dst: &mut [f32]) {
    assert_eq!(src.len(), dst.len());
    for (d, s) in dst.iter_mut().zip(src) {
        *d = to_f32(*s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even() {
        let table = [
            (0x3f80_0000, 0x3f80), // 1
            (0x3f80_8000, 0x3f80), // halfway, even below
            (0x3f81_8000, 0x3f82), // halfway, even above
            (0x3f80_8001, 0x3f81),
            (0x3f80_7fff, 0x3f80),
            (0x7f7f_ffff, 0x7f80), // the largest f32 rounds to infinity
            (0xff80_0000, 0xff80), // -infinity
            (0x8000_0000, 0x8000), // -0
        ];
        for (f32_bits, bf16_bits) in table {
            assert_eq!(from_f32(f32::from_bits(f32_bits)), bf16_bits, "{f32_bits:#x}");
        }
        for nan in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001] {
            assert!(round(f32::from_bits(nan)).is_nan());
        }
    }

    #[test]
    fn every_bf16_survives_the_way_through_f32() {
        let all: Vec<u16> = (0..=u16::MAX).filter(|b| !to_f32(*b).is_nan()).collect();
        let mut widened = vec![0.0; all.len()];
        let mut back = vec![0; all.len()];
        to_f32_slice(&all, &mut widened);
        from_f32_slice(&widened, &mut back);
        assert_eq!(all, back);
    }
}
