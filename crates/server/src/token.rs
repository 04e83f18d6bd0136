//! The secret of a server. A client that has it may do everything that the server can.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

/// The bytes of a token.
const BYTES: usize = 32;

/// A random secret of 256 bits. It is compared in constant time and never printed by accident.
#[derive(Clone)]
pub struct Token([u8; BYTES]);

/// A text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token has {} hexadecimal digits", BYTES * 2)]
pub struct InvalidToken;

impl Token {
    /// A fresh token. It fails only if the system has no random numbers.
    pub fn fresh() -> std::io::Result<Self> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self(bytes))
    }

    /// The token as text, for the address that people open and the file that scripts read.
    pub fn reveal(&self) -> String {
        hex(&self.0)
    }

    /// Whether a text is this token.
    pub(crate) fn is(&self, text: &str) -> bool {
        same(&self.reveal(), text)
    }

    /// What a browser gets in its cookie: derived from the token, so that it is valid as long as the token, and
    /// not the token itself.
    pub(crate) fn cookie(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(b"inspan cookie\0");
        hash.update(self.0);
        hex(&hash.finalize())
    }

    /// Whether a text is the value of the cookie.
    pub(crate) fn is_cookie(&self, text: &str) -> bool {
        same(&self.cookie(), text)
    }
}

/// How long a code opens the page. Other users of the machine may see the arguments of the browser that got it.
const CODE_LIFE: Duration = Duration::from_secs(60);

/// Codes that open the page once, in place of the token.
#[derive(Clone, Default)]
pub struct LoginCodes(Arc<Mutex<Vec<(Token, Instant)>>>);

impl LoginCodes {
    /// A fresh code, for an address that a browser gets as an argument. It is valid for a minute.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn fresh(&self) -> std::io::Result<Token> {
        let code = Token::fresh()?;
        self.lock().push((code.clone(), Instant::now()));
        Ok(code)
    }

    /// Whether a text is a code that was not used; now it is.
    pub(crate) fn take(&self, text: &str) -> bool {
        let mut codes = self.lock();
        codes.retain(|(_, made)| made.elapsed() < CODE_LIFE);
        let found = codes.iter().position(|(code, _)| code.is(text));
        found.map(|at| codes.remove(at)).is_some()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Token, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Compares in a time that does not depend on where two texts differ.
fn same(known: &str, given: &str) -> bool {
    known.as_bytes().ct_eq(given.as_bytes()).into()
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl FromStr for Token {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let digits = text.as_bytes();
        if digits.len() != BYTES * 2 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(InvalidToken);
        }
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| InvalidToken)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| InvalidToken)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token: Token = "0123456789abcdef".repeat(4).parse().unwrap();
        assert_eq!(token.reveal(), "0123456789abcdef".repeat(4));
        assert!(token.is(&token.reveal()) && token.is_cookie(&token.cookie()));
        assert!(!token.is(&token.cookie()) && !token.is_cookie(&token.reveal()));
        assert!(!token.is("") && !token.is(&token.reveal()[1..]));
        assert_eq!(format!("{token:?}"), "Token");
        assert_ne!(Token::fresh().unwrap().reveal(), Token::fresh().unwrap().reveal());
    }

    #[test]
    fn a_text_that_is_no_token_is_refused() {
        for text in ["", "00", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert_eq!(text.parse::<Token>().unwrap_err(), InvalidToken, "{text}");
        }
    }
}
