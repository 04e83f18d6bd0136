//! A reader of JSON for the lines of a stream: most of their bytes stand in long strings, and most of what they hold
//! nobody asks for. It looks at sixteen bytes of a string at once and borrows what it can. Whatever is wrong, or seldom,
//! it leaves to `serde_json`, which reads the whole anew and says what is wrong with it.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Number;

mod reader;
#[cfg(test)]
mod tests;

use reader::{Items, Reader};

/// What the text says, all of it.
pub(crate) fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, serde_json::Error> {
    quick(text).or_else(|Unread| serde_json::from_str(text))
}

fn quick<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Unread> {
    let mut reader = Reader::new(text);
    let value = T::deserialize(&mut reader);
    if reader.peek().is_none() { value } else { Err(Unread) }
}

/// It is for `serde_json` to read.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not read")
    }
}

impl std::error::Error for Unread {}

impl serde::de::Error for Unread {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Reads what begins so, and nothing else.
macro_rules! only {
    ($($method:ident)+: $first:pat) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
                match self.peek() {
                    Some($first) => self.deserialize_any(visitor),
                    _ => Err(Unread),
                }
            }
        )+
    };
}

/// Left to `serde_json`: no line's struct asks for it.
macro_rules! unread {
    ($(fn $method:ident($($argument:ty),*);)+) => {
        $(
            fn $method<V: Visitor<'de>>(self, $(_: $argument,)* _: V) -> Result<V::Value, Unread> {
                Err(Unread)
            }
        )+
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match self.peek().ok_or(Unread)? {
            b'"' => self.deserialize_str(visitor),
            b'{' => self.items(b'}', |items| visitor.visit_map(items)),
            b'[' => self.items(b']', |items| visitor.visit_seq(items)),
            b'n' => self.take_word("null").and_then(|()| visitor.visit_unit()),
            b't' => self.take_word("true").and_then(|()| visitor.visit_bool(true)),
            b'f' => self.take_word("false").and_then(|()| visitor.visit_bool(false)),
            _ => match self.digits() {
                Some(number) => visitor.visit_u64(number),
                None => {
                    let number = serde_json::from_str::<Number>(self.number());
                    number.and_then(|number| number.deserialize_any(visitor)).map_err(|_| Unread)
                }
            },
        }
    }

    #[inline]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        self.take(b'"')?;
        match self.plain_string() {
            Some(text) => visitor.visit_borrowed_str(text),
            None => visitor.visit_string(self.escaped_string()?),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        match self.peek() {
            Some(b'n') => self.take_word("null").and_then(|()| visitor.visit_none()),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        self.skip()?;
        visitor.visit_unit()
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        self.deserialize_map(visitor)
    }

    // Whoever asks for one of these gets no other, even if it would take it: `serde_json` is as strict.
    only!(deserialize_bool: b't' | b'f');
    only! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_f32 deserialize_f64: b'-' | b'0'..=b'9'
    }
    only!(deserialize_unit: b'n');
    only!(deserialize_seq: b'[');
    only!(deserialize_map: b'{');
    only!(deserialize_string deserialize_identifier deserialize_char: b'"');

    unread! {
        fn deserialize_i128();
        fn deserialize_u128();
        fn deserialize_bytes();
        fn deserialize_byte_buf();
        fn deserialize_unit_struct(&'static str);
        fn deserialize_tuple(usize);
        fn deserialize_tuple_struct(&'static str, usize);
        fn deserialize_enum(&'static str, &'static [&'static str]);
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = Unread;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Unread> {
        if self.next()? { seed.deserialize(&mut *self.reader).map(Some) } else { Ok(None) }
    }
}

impl<'de> MapAccess<'de> for &mut Items<'_, 'de> {
    type Error = Unread;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Unread> {
        if self.next()? { seed.deserialize(Key(self.reader)).map(Some) } else { Ok(None) }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Unread> {
        self.reader.take(b':')?;
        seed.deserialize(&mut *self.reader)
    }
}

/// The key of an item, which is nothing but a string.
struct Key<'r, 'a>(&'r mut Reader<'a>);

impl<'de> Deserializer<'de> for Key<'_, 'de> {
    type Error = Unread;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Unread> {
        self.0.deserialize_str(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}
