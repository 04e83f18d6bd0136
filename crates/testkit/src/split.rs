//! Cuts bytes into chunks in many ways, for tests that a decoder does not care where a read ends.

/// One way of cutting; its chunks put together are the bytes again, and none is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split<'a> {
    /// For the message of a failing test: `whole`, `one byte` or `seed 3`.
    pub name: String,
    /// In order.
    pub chunks: Vec<&'a [u8]>,
}

/// The bytes whole, byte by byte, and in one random cutting per seed.
pub fn split_everywhere(bytes: &[u8], seeds: impl IntoIterator<Item = u64>) -> Vec<Split<'_>> {
    let whole = Split { name: "whole".to_owned(), chunks: bytes.chunks(bytes.len().max(1)).collect() };
    let single = Split { name: "one byte".to_owned(), chunks: one_byte_chunks(bytes).collect() };
    let random = seeds
        .into_iter()
        .map(|seed| Split { name: format!("seed {seed}"), chunks: random_chunks(bytes, seed) });
    [whole, single].into_iter().chain(random).collect()
}

/// The bytes one at a time.
pub fn one_byte_chunks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(1)
}

/// The bytes in chunks of random length, the same for the same seed on every machine. Most are a few bytes
/// long, a few up to 512, so that most lines are cut and some come whole.
pub fn random_chunks(bytes: &[u8], seed: u64) -> Vec<&[u8]> {
    let mut random = Xorshift::new(seed);
    let mut rest = bytes;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let most = if random.below(64) == 0 { 512 } else { 24 };
        let (chunk, left) = rest.split_at(rest.len().min(1 + random.below(most)));
        chunks.push(chunk);
        rest = left;
    }
    chunks
}

/// Every way to cut the bytes in two, both parts non-empty. Quadratic work for who decodes each: for short input.
pub fn cut_in_two(bytes: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    (1..bytes.len()).map(|place| bytes.split_at(place))
}

/// Marsaglia's xorshift over 64 bits: enough to scatter cuts, the same everywhere, and no dependency.
pub(crate) struct Xorshift(u64);

impl Xorshift {
    pub(crate) fn new(seed: u64) -> Self {
        // Spreads small seeds over all bits; the state must not be zero.
        Self(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper bits are the better ones; the remainder's bias does not matter here.
        (self.0 >> 33) as usize % limit
    }

    pub(crate) fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_put_together_are_the_bytes() {
        let bytes: Vec<u8> = (0..20_000).map(|index| (index % 251) as u8).collect();
        for split in split_everywhere(&bytes, 0..20) {
            assert_eq!(split.chunks.concat(), bytes, "{}", split.name);
            assert!(split.chunks.iter().all(|chunk| !chunk.is_empty()), "{}", split.name);
        }
        assert!(cut_in_two(&bytes[..300]).all(|(left, right)| [left, right].concat() == bytes[..300]));
        assert_eq!(cut_in_two(&bytes[..300]).count(), 299);
    }

    #[test]
    fn seeds_cut_differently_and_always_the_same() {
        let bytes = [b'x'; 60];
        let lengths = |seed| random_chunks(&bytes, seed).iter().map(|chunk| chunk.len()).collect::<Vec<_>>();
        assert_eq!(
            [lengths(0), lengths(1), lengths(2)],
            [vec![13, 15, 16, 8, 8], vec![11, 8, 6, 11, 15, 3, 6], vec![23, 11, 17, 9]]
        );
    }

    #[test]
    fn nothing_is_cut_into_nothing() {
        let names_and_counts: Vec<(String, usize)> =
            split_everywhere(b"", [7]).into_iter().map(|split| (split.name, split.chunks.len())).collect();
        let expected = [("whole", 0), ("one byte", 0), ("seed 7", 0)];
        assert_eq!(names_and_counts, expected.map(|(name, count)| (name.to_owned(), count)).to_vec());
        assert_eq!(cut_in_two(b"").count(), 0);
    }
}
