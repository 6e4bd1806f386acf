//! Converts between numbers and their little-endian bytes, as files and messages contain them.
//!
//! These functions are never inlined, so that they are optimised even in a build that does not optimise their callers.

/// Reads f32 values from `bytes`.
///
/// # Panics
/// If there are not four bytes for each element.
#[inline(never)]
pub fn read_f32(bytes: &[u8], out: &mut [f32]) {
    words(bytes, out.len()).iter().zip(out).for_each(|(word, out)| *out = f32::from_le_bytes(*word));
}

/// Reads i32 values from `bytes`.
///
/// # Panics
/// If there are not four bytes for each element.
#[inline(never)]
pub fn read_i32(bytes: &[u8], out: &mut [i32]) {
    words(bytes, out.len()).iter().zip(out).for_each(|(word, out)| *out = i32::from_le_bytes(*word));
}

/// Writes f32 values to `bytes`.
///
/// # Panics
/// If there are not four bytes for each element.
#[inline(never)]
pub fn write_f32(values: &[f32], bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<4>();
    assert!(words.len() == values.len() && rest.is_empty());
    words.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_le_bytes());
}

fn words(bytes: &[u8], elements: usize) -> &[[u8; 4]] {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(words.len() == elements && rest.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_byte_is_first_wherever_the_bytes_begin() {
        let mut bytes = [0; 9];
        write_f32(&[1.0, -2.0], &mut bytes[1..]);
        assert_eq!(bytes, [0, 0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        let (mut floats, mut integers) = ([0.0; 2], [0; 2]);
        read_f32(&bytes[1..], &mut floats);
        read_i32(&bytes[1..], &mut integers);
        assert_eq!((floats, integers), ([1.0, -2.0], [0x3f80_0000, -0x4000_0000]));
    }
}
