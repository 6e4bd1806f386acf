//! Seeded mutations of inputs, in place of libFuzzer for the runner of the stable toolchain.

/// A random number generator: xorshift64*, by Vigna (2016).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Creates a generator whose seed is derived from `name`.
    pub fn new(name: &str) -> Self {
        Self(
            name.bytes()
                .fold(0x9e37_79b9_7f4a_7c15, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
                | 1,
        )
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() >> 16) as usize % bound.max(1)
    }
}

/// Texts and bytes with a meaning to some reader.
const DICTIONARY: [&[u8]; 40] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"",
    b"\n",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: *a",
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1e400",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9223372036854775808",
    b"0.1",
    b"NaN",
    b".inf",
    b"\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x80",
    b"\xef\xbb\xbf",
    b"../",
    b"/",
    b"\\u0000",
    b"\\ud800",
    b"\xf0\x9f\x8c\xbe",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":{\"a\":",
    b"--boundary\r\n",
    b"--boundary--",
    b"\r\n\r\n",
    b"Content-Disposition: form-data; name=\"file\"; filename=\"a\"",
    b"*",
];

/// Maximum bytes of an input.
const MAX_INPUT_BYTES: usize = 1 << 16;

/// Returns one of `seeds` with one to eight changes.
pub fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let empty = Vec::new();
    let mut input = seeds.get(random.below(seeds.len())).unwrap_or(&empty).clone();
    for _ in 0..=random.below(8) {
        change(&mut input, seeds, random);
    }
    input.truncate(MAX_INPUT_BYTES);
    input
}

fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(16)).min(input.len());
    match random.below(8) {
        0 | 1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = random.number() as u8;
            }
        }
        3 => drop(input.drain(at.min(end)..end)),
        4 => {
            let word = DICTIONARY[random.below(DICTIONARY.len())];
            drop(input.splice(at..at, word.iter().copied()));
        }
        5 => {
            let word = DICTIONARY[random.below(DICTIONARY.len())];
            drop(input.splice(at.min(end)..end, word.iter().copied()));
        }
        6 => {
            let piece = input.get(at..(at + random.below(256)).min(input.len())).unwrap_or_default().to_vec();
            let to = random.below(input.len() + 1);
            drop(input.splice(to..to, piece));
        }
        _ => {
            if let Some(other) = seeds.get(random.below(seeds.len())) {
                input.truncate(at);
                input.extend_from_slice(other.get(random.below(other.len() + 1)..).unwrap_or_default());
            }
        }
    }
}
