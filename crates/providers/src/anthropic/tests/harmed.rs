//! Recorded streams that are corrupted anywhere, and bytes that never were a stream.

use inspan_testkit::{corrupt, random_chunks};
use proptest::prelude::*;

use super::super::decode::{AnthropicDecoded, Decoder, PartialResponse};
use crate::api::stream::ResponseDecoder;

/// The streams of the recorded cases.
fn streams() -> &'static [Vec<u8>] {
    static ALL: std::sync::LazyLock<Vec<Vec<u8>>> =
        std::sync::LazyLock::new(|| crate::replay::transcripts("anthropic"));
    &ALL
}

/// The output of these reads, and what is stored of the answer.
fn reported(chunks: &[&[u8]]) -> (Vec<AnthropicDecoded>, PartialResponse) {
    let mut decoder = Decoder::default();
    let mut decoded: Vec<AnthropicDecoded> = chunks.iter().flat_map(|chunk| decoder.push(chunk)).collect();
    decoded.extend(decoder.finish());
    (decoded, decoder.partial())
}

proptest! {
    /// No panic, no difference by the cuts, one end at most and nothing after it, and no more output than input.
    #[test]
    fn no_stream_breaks_the_decoder(
        case in any::<prop::sample::Index>(),
        seed in any::<u64>(),
        noise in prop::option::weighted(0.2, prop::collection::vec(any::<u8>(), 0..400)),
    ) {
        let bytes = noise.unwrap_or_else(|| corrupt(case.get::<Vec<u8>>(streams()), seed));
        let whole = reported(&[&bytes]);
        prop_assert_eq!(&reported(&random_chunks(&bytes, seed)), &whole);
        let ends = |decoded: &AnthropicDecoded| !matches!(decoded, AnthropicDecoded::Event(_));
        let first = whole.0.iter().position(ends);
        prop_assert!(first.is_none_or(|first| first + 1 == whole.0.len()), "something follows the end");
        let returned = format!("{whole:?}").len();
        prop_assert!(returned <= 64 * bytes.len() + 8192, "{returned} bytes said of {}", bytes.len());
    }
}
