//! Damages sound inputs, reproducibly for each seed.

use fastrand::Rng;

/// The longest damaged input, in bytes.
pub const LONGEST: usize = 1 << 20;
/// Distance from either end, in bytes, within which ELF files have their headers: half of all damage is done there.
const HEADERS: usize = 4096;
/// The most changes to one input.
const MOST_CHANGES: usize = 12;
/// Numbers at which readers go wrong: ends of types, sizes of pages, lengths of tables.
const NUMBERS: [u64; 14] = [
    0,
    1,
    2,
    0x38,
    0x40,
    0xff,
    0xffff,
    1 << 12,
    1 << 21,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// A damaged copy of one of `samples`, of which there must be at least one.
pub fn damaged(samples: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut bytes = samples[random.usize(..samples.len())].clone();
    bytes.truncate(LONGEST);
    for _ in 0..random.usize(1..=MOST_CHANGES) {
        change(&mut bytes, samples, random);
    }
    bytes.truncate(LONGEST);
    bytes
}

fn change(bytes: &mut Vec<u8>, samples: &[Vec<u8>], random: &mut Rng) {
    if bytes.is_empty() {
        return bytes.push(random.u8(..));
    }
    let at = position(bytes.len(), random);
    match random.u8(..16) {
        0..3 => bytes[at] ^= 1 << random.u8(..8),
        3..5 => bytes[at] = random.u8(..),
        5..11 => put_number(bytes, at, random),
        11..13 => {
            let from = position(bytes.len(), random);
            let length = random.usize(..=64).min(bytes.len() - from.max(at));
            bytes.copy_within(from..from + length, at);
        }
        13 => {
            let end = (at + random.usize(..=64)).min(bytes.len());
            bytes.drain(at..end);
        }
        14 => {
            let other = &samples[random.usize(..samples.len())];
            let from = random.usize(..=other.len());
            let piece = other[from..other.len().min(from + random.usize(..=256))].to_vec();
            bytes.splice(at..at, piece);
        }
        _ => bytes.truncate(at),
    }
}

fn position(length: usize, random: &mut Rng) -> usize {
    let near = random.usize(..length.min(HEADERS));
    match random.u8(..4) {
        0 => near,
        1 => length - 1 - near,
        _ => random.usize(..length),
    }
}

/// A number of 1, 2, 4 or 8 bytes at a place for one of that size, or, in text, as digits.
fn put_number(bytes: &mut Vec<u8>, at: usize, random: &mut Rng) {
    let number = NUMBERS[random.usize(..NUMBERS.len())].wrapping_add_signed(random.i64(-2..=2));
    if bytes[at].is_ascii_alphanumeric() && random.bool() {
        let digits = if random.bool() { format!("{number:x}") } else { number.to_string() };
        let end = at + bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        bytes.splice(at..end, digits.into_bytes());
        return;
    }
    let size = 1 << random.u32(..4);
    let at = at - at % size;
    if let Some(place) = bytes.get_mut(at..at + size) {
        place.copy_from_slice(&number.to_le_bytes()[..size]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_input_and_another_seed_another() {
        let samples = [b"a sound input".to_vec(), vec![7; 5000]];
        let of = |seed| -> Vec<Vec<u8>> {
            let mut random = Rng::with_seed(seed);
            (0..50).map(|_| damaged(&samples, &mut random)).collect()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!(of(1).iter().filter(|input| !samples.contains(input)).count() > 40);
    }

    #[test]
    fn no_sample_is_too_short_or_too_long() {
        let mut random = Rng::with_seed(3);
        for sample in [Vec::new(), vec![1], vec![0; 2 * LONGEST]] {
            for _ in 0..100 {
                assert!(damaged(std::slice::from_ref(&sample), &mut random).len() <= LONGEST);
            }
        }
    }
}
