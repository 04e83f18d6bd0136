//! Tokens that are recognised by their shape, wherever they come from: API keys of known vendors, JSON Web Tokens, private keys,
//! what follows `Bearer` and `Basic`, the password of a URL. People allow commands by what they see of them: no white space,
//! quote or operator of a shell is part of what is found, nor a word of its own that may be a command or a path.

use std::{ops::Range, sync::LazyLock};

use aho_corasick::AhoCorasick;
use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

/// An unfinished token is waited for so long, in bytes.
const LONGEST: usize = 4096;
/// And a private key so long.
const LONGEST_KEY: usize = 16 * 1024;
/// No token is shorter, in bytes: `://a:b@`. Most names of fields are.
const SHORTEST: usize = 7;
/// What follows `Bearer` is at least so long.
const SHORTEST_WORD: usize = 16;
/// And has so many letters and digits in a row, unlike the names of files.
const SHORTEST_RUN: usize = 10;
/// A path has no run of letters and digits that is so long.
const LONG_RUN: usize = 20;
/// How many digits the port of a URL may have.
const LONGEST_PORT: usize = 5;
/// How keys begin, if they are not encrypted.
const KEYS: &[&str] = &["MII", "MIG", "MHcC", "MC4C", "b3Bl"];
/// A line of a private key is at least so long, but for its last one.
const SHORTEST_LINE: usize = 40;
/// One of so many characters of base64 is a capital letter, at least. Words and paths have fewer.
const CAPITALS: usize = 6;

/// How the rest of a token is read.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    /// At least so many letters, digits, `_` and `-`, a digit among them.
    Token(usize),
    /// Exactly so many capital letters and digits.
    Exactly(usize),
    /// Three parts of a JSON Web Token.
    Parts,
    /// The lines of a private key, to its end line.
    Key,
    /// The word that follows, if it looks like a token.
    Word,
    /// A user and a password in base64.
    Login,
    /// A user and a password, before the `@` of a URL.
    User,
}

const SHAPES: &[(&str, Rest)] = &[
    ("sk-", Rest::Token(16)),
    ("sk_live_", Rest::Token(8)),
    ("sk_test_", Rest::Token(8)),
    ("rk_live_", Rest::Token(8)),
    ("ghp_", Rest::Token(16)),
    ("gho_", Rest::Token(16)),
    ("ghu_", Rest::Token(16)),
    ("ghs_", Rest::Token(16)),
    ("ghr_", Rest::Token(16)),
    ("github_pat_", Rest::Token(16)),
    ("glpat-", Rest::Token(16)),
    ("xoxa-", Rest::Token(10)),
    ("xoxb-", Rest::Token(10)),
    ("xoxp-", Rest::Token(10)),
    ("xoxr-", Rest::Token(10)),
    ("xoxs-", Rest::Token(10)),
    ("xapp-", Rest::Token(10)),
    ("hf_", Rest::Token(20)),
    ("gsk_", Rest::Token(20)),
    ("npm_", Rest::Token(30)),
    ("AIza", Rest::Token(30)),
    ("AKIA", Rest::Exactly(16)),
    ("ASIA", Rest::Exactly(16)),
    ("eyJ", Rest::Parts),
    ("-----BEGIN ", Rest::Key),
    ("Bearer ", Rest::Word),
    ("bearer ", Rest::Word),
    ("BEARER ", Rest::Word),
    ("Basic ", Rest::Login),
    ("basic ", Rest::Login),
    ("://", Rest::User),
];

const LOGIN: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

static STARTS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::new(SHAPES.iter().map(|(start, _)| start)).ok());

/// Where tokens are.
pub(super) fn find(text: &str) -> impl Iterator<Item = Range<usize>> {
    let text = if text.len() < SHORTEST { "" } else { text };
    starts(text).flat_map(move |(start, after, rest)| match rest {
        Rest::Key => key(text, after),
        Rest::User => passwords(text, after),
        _ => read(text, start, after, rest).into_iter().collect(),
    })
}

/// Where a token begins that the text ends before it is complete.
pub(super) fn unfinished(text: &str) -> Option<usize> {
    let open = starts(text).find(|&(start, after, rest)| {
        let (end, most) = match rest {
            Rest::Key => (key_body(text, after).end, LONGEST_KEY),
            Rest::User => (after + run(&text[after..], is_user), LONGEST),
            Rest::Parts => (after + run(&text[after..], |byte| is_token(byte) || byte == b'.'), LONGEST),
            Rest::Word | Rest::Login => (after + run(&text[after..], is_word), LONGEST),
            Rest::Token(_) | Rest::Exactly(_) => (after + run(&text[after..], is_token), LONGEST),
        };
        end == text.len() && text.len() - start <= most
    });
    open.map(|(start, ..)| start)
}

/// The password in the first URL with one.
pub(super) fn password_of_url(text: &str) -> Option<&str> {
    let mut urls = text.match_indices("://").map(|(at, _)| authority(text, at + 3));
    Some(&text[urls.find_map(|authority| password(text, authority))?])
}

fn starts(text: &str) -> impl Iterator<Item = (usize, usize, Rest)> {
    let matches = STARTS.iter().flat_map(move |starts| starts.find_iter(text));
    let starts = matches.map(|at| (at.start(), at.end(), SHAPES[at.pattern().as_usize()].1));
    starts.filter(move |&(start, _, rest)| begins_word(text, start, rest))
}

fn begins_word(text: &str, start: usize, rest: Rest) -> bool {
    let inside = text[..start].chars().next_back().is_some_and(char::is_alphanumeric);
    matches!(rest, Rest::User | Rest::Key) || !inside
}

fn read(text: &str, start: usize, after: usize, rest: Rest) -> Option<Range<usize>> {
    let tail = &text[after..];
    match rest {
        Rest::Token(least) => {
            let length = run(tail, is_token);
            (length >= least && has_digit(&tail[..length])).then_some(start..after + length)
        }
        Rest::Exactly(count) => {
            let length = run(tail, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
            let ends = !tail[length..].starts_with(|c: char| c.is_alphanumeric());
            (length == count && ends).then_some(start..after + length)
        }
        Rest::Parts => {
            let length = run(tail, |byte| is_token(byte) || byte == b'.');
            let token = text[start..after + length].trim_end_matches('.');
            let parts: Vec<&str> = token.split('.').collect();
            let fits = parts.len() >= 3 && parts.iter().take(3).all(|part| part.len() >= 8);
            fits.then_some(start..start + token.len())
        }
        Rest::Word => {
            let word = tail[..run(tail, is_word)].trim_end_matches('.');
            let runs = || word.split(|c: char| !c.is_ascii_alphanumeric()).filter(|run| has_digit(run));
            let longest = runs().map(str::len).max().unwrap_or_default();
            let mixed = runs().filter(|run| run.contains(|c: char| c.is_ascii_alphabetic())).count();
            let is_path = word.contains('/') && !is_mixed(word) && longest < LONG_RUN;
            let fits = word.len() >= SHORTEST_WORD && !is_path && (longest >= SHORTEST_RUN || mixed > 1);
            fits.then_some(after..after + word.len())
        }
        Rest::Login => {
            let word = &tail[..run(tail, |byte| is_base64(byte) || b"-_".contains(&byte))];
            // It may be cut: one character more is no byte more.
            let whole = &word[..word.len() - usize::from(word.len() % 4 == 1)];
            let login = LOGIN.decode(whole.replace('-', "+").replace('_', "/")).ok()?;
            let login = login.trim_ascii_end();
            // The second block of control characters is that of Latin-1.
            let is_text = !login.iter().any(|byte| byte.is_ascii_control() || (0x80..0xa0).contains(byte))
                || std::str::from_utf8(login).is_ok_and(|login| !login.contains(char::is_control));
            (is_text && login.contains(&b':') && login.len() >= SHORTEST).then_some(after..after + word.len())
        }
        Rest::Key | Rest::User => None,
    }
}

/// What is between the lines `BEGIN` and `END` of a private key, to the end of the text if there is no other line; nothing of what
/// else begins so.
fn key_body(text: &str, after: usize) -> Range<usize> {
    const DASHES: &str = "-----";
    let Some(label) = text[after..].find(DASHES) else { return text.len()..text.len() };
    let start = after + label + DASHES.len();
    if !text[after..after + label].ends_with("PRIVATE KEY") {
        return start..start;
    }
    start..text[start..].find(DASHES).map_or(text.len(), |end| start + end)
}

/// The lines of the private key whose `BEGIN` is before. What is beside them stays: the numbers of lines and the marks of
/// changes, and what is no part of a key.
fn key(text: &str, after: usize) -> Vec<Range<usize>> {
    let body = key_body(text, after);
    let bytes = &text.as_bytes()[..body.end];
    let (mut lines, mut at, mut has_begun) = (Vec::new(), body.start, false);
    while at < body.end {
        let range = at + usize::from(at > 0 && bytes[at - 1] == b'\\')..at + key_run(&bytes[at..]);
        at = range.end.max(at + 1);
        if range.is_empty() || !bytes[range.clone()].iter().any(u8::is_ascii_alphabetic) {
            continue;
        }
        let line = &text[range.clone()];
        let is_long = line.len() >= SHORTEST_LINE && has_digit(line);
        has_begun |= is_mixed(line) && (is_long || KEYS.iter().any(|key| line.starts_with(key)));
        // Words beside each other may be a command.
        let is_beside = bytes.get(range.end) == Some(&b' ')
            || bytes[..range.start]
                .strip_suffix(b" ")
                .is_some_and(|before| before.last().is_some_and(u8::is_ascii_alphabetic));
        let fits = !is_beside || (line.len() >= SHORTEST_WORD && has_digit(line));
        lines.extend((has_begun && fits && is_mixed(line)).then_some(range));
    }
    lines
}

/// How many bytes of the beginning are base64, also escaped as in JSON.
fn key_run(bytes: &[u8]) -> usize {
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        length += match &bytes[length..] {
            _ if is_base64(*byte) => 1,
            [b'\\', b'/', ..] => 2,
            [b'\\', b'u', b'0', b'0', b'2', _, ..] if bytes[length + 5].is_ascii_hexdigit() => 6,
            _ => break,
        };
    }
    length
}

/// The parts of the password of the URL whose authority begins here. A shell may end the URL at one of its operators, and what is
/// between two of them may be a command: it stays.
fn passwords(text: &str, at: usize) -> Vec<Range<usize>> {
    let Some(whole) = password(text, authority(text, at)) else { return Vec::new() };
    let end = whole.start + run(&text[whole.clone()], |byte| !is_operator(byte));
    if end == whole.end {
        return vec![whole];
    }
    let first = password(text, at..end).unwrap_or(whole.start..end);
    let is_port =
        first.len() <= LONGEST_PORT && text[first.clone()].bytes().all(|byte| byte.is_ascii_digit());
    let last = text[whole.clone()].bytes().rposition(is_operator).map_or(end, |at| whole.start + at + 1);
    let parts = [(!is_port).then_some(first), (last < whole.end).then_some(last..whole.end)];
    parts.into_iter().flatten().collect()
}

fn authority(text: &str, at: usize) -> Range<usize> {
    at..at + run(&text[at..], is_user)
}

fn password(text: &str, authority: Range<usize>) -> Option<Range<usize>> {
    let host = text[authority.clone()].rfind('@')?;
    let colon = text[authority.clone()][..host].find(':')?;
    let password = authority.start + colon + 1..authority.start + host;
    let is_placeholder = text[password.clone()].contains(['$', '{', '<', '*', '[']);
    (password.len() >= 6 && !is_placeholder).then_some(password)
}

fn has_digit(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_digit())
}

/// Whether it looks as what is random does in base64.
fn is_mixed(text: &str) -> bool {
    text.bytes().filter(u8::is_ascii_uppercase).count() * CAPITALS >= text.len()
}

/// How many bytes of the beginning are of a kind.
fn run(text: &str, of: impl Fn(u8) -> bool) -> usize {
    text.bytes().position(|byte| !of(byte)).unwrap_or(text.len())
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn is_word(byte: u8) -> bool {
    is_token(byte) || b"._~+/=".contains(&byte)
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/'
}

fn is_operator(byte: u8) -> bool {
    matches!(byte, b'|' | b'&' | b';')
}

/// What may be before the path of a URL.
fn is_user(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !b"/?#\"'<>\\`()".contains(&byte)
}
