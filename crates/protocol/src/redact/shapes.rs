//! Tokens that are recognised by their shape, wherever they come from: API keys of known vendors, JSON Web Tokens, private keys,
//! what follows `Bearer`, the password of a URL.

use std::{ops::Range, sync::LazyLock};

use aho_corasick::AhoCorasick;

/// An unfinished token is waited for so long, in bytes.
const LONGEST: usize = 4096;
/// And a private key so long.
const LONGEST_KEY: usize = 16 * 1024;
/// No token is shorter, in bytes: `://a:b@`. Most names of fields are.
const SHORTEST: usize = 7;

/// How the rest of a token is read.
#[derive(Clone, Copy, PartialEq)]
enum Rest {
    /// At least so many letters, digits, `_` and `-`, a digit among them.
    Token(usize),
    /// Exactly so many capital letters and digits.
    Exactly(usize),
    /// Three parts of a JSON Web Token.
    Parts,
    /// A private key, to its end line.
    Key,
    /// The word that follows, if it looks like a token.
    Word,
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
    ("Basic ", Rest::Word),
    ("basic ", Rest::Word),
    ("://", Rest::User),
];

static STARTS: LazyLock<Option<AhoCorasick>> =
    LazyLock::new(|| AhoCorasick::new(SHAPES.iter().map(|(start, _)| start)).ok());

/// The token at a start.
enum TokenMatch {
    /// A token, or the part of one that is to be replaced.
    Token(Range<usize>),
    Nothing,
}

/// Where tokens are.
pub(super) fn find(text: &str) -> impl Iterator<Item = Range<usize>> {
    let text = if text.len() < SHORTEST { "" } else { text };
    starts(text).filter_map(move |(start, after, rest)| match read(text, start, after, rest) {
        TokenMatch::Token(range) => Some(range),
        TokenMatch::Nothing => None,
    })
}

/// Where a token begins that the text ends before it is complete.
pub(super) fn unfinished(text: &str) -> Option<usize> {
    let open = starts(text).find(|&(start, after, rest)| {
        let (end, most) = match rest {
            Rest::Key => (key_end(&text[after..]).map_or(text.len(), |end| after + end), LONGEST_KEY),
            Rest::User => (after + run(&text[after..], is_user), LONGEST),
            Rest::Parts => (after + run(&text[after..], |byte| is_token(byte) || byte == b'.'), LONGEST),
            Rest::Word => (after + run(&text[after..], is_word), LONGEST),
            Rest::Token(_) | Rest::Exactly(_) => (after + run(&text[after..], is_token), LONGEST),
        };
        end == text.len() && text.len() - start <= most
    });
    open.map(|(start, ..)| start)
}

/// The password in the first URL with one.
pub(super) fn password_of_url(text: &str) -> Option<&str> {
    let range = text.match_indices("://").find_map(|(at, _)| password(text, at + 3))?;
    Some(&text[range])
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

fn read(text: &str, start: usize, after: usize, rest: Rest) -> TokenMatch {
    let tail = &text[after..];
    match rest {
        Rest::Token(least) => {
            let length = run(tail, is_token);
            let fits = length >= least && tail[..length].contains(|c: char| c.is_ascii_digit());
            if fits { TokenMatch::Token(start..after + length) } else { TokenMatch::Nothing }
        }
        Rest::Exactly(count) => {
            let length = run(tail, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
            let ends = !tail[length..].starts_with(|c: char| c.is_alphanumeric());
            if length == count && ends {
                TokenMatch::Token(start..after + length)
            } else {
                TokenMatch::Nothing
            }
        }
        Rest::Parts => {
            let length = run(tail, |byte| is_token(byte) || byte == b'.');
            let token = text[start..after + length].trim_end_matches('.');
            let parts: Vec<&str> = token.split('.').collect();
            let fits = parts.len() >= 3 && parts.iter().take(3).all(|part| part.len() >= 8);
            if fits { TokenMatch::Token(start..start + token.len()) } else { TokenMatch::Nothing }
        }
        Rest::Key => {
            let label = tail.find("-----").map_or("", |end| &tail[..end]);
            if !label.ends_with("PRIVATE KEY") {
                return TokenMatch::Nothing;
            }
            TokenMatch::Token(start..key_end(tail).map_or(text.len(), |end| after + end))
        }
        Rest::Word => {
            let length = run(tail, is_word);
            let word = tail[..length].trim_end_matches('.');
            let fits = word.len() >= 16 && word.contains(|c: char| c.is_ascii_digit());
            if fits { TokenMatch::Token(after..after + word.len()) } else { TokenMatch::Nothing }
        }
        Rest::User => password(text, after).map_or(TokenMatch::Nothing, TokenMatch::Token),
    }
}

/// Where a private key ends, counted from the end of its `-----BEGIN `.
fn key_end(tail: &str) -> Option<usize> {
    let end = tail.find("-----END ")? + "-----END ".len();
    Some(end + tail[end..].find("-----")? + "-----".len())
}

/// The password of the URL whose authority begins here.
fn password(text: &str, authority: usize) -> Option<Range<usize>> {
    let length = run(&text[authority..], is_user);
    let authority = authority..authority + length;
    let host = text[authority.clone()].rfind('@')?;
    let colon = text[authority.clone()][..host].find(':')?;
    let password = authority.start + colon + 1..authority.start + host;
    let is_placeholder = text[password.clone()].contains(['$', '{', '<', '*', '[']);
    (password.len() >= 6 && !is_placeholder).then_some(password)
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

/// What may be before the path of a URL.
fn is_user(byte: u8) -> bool {
    !byte.is_ascii_whitespace() && !byte.is_ascii_control() && !b"/?#\"'<>\\`()".contains(&byte)
}
