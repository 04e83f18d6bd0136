//! What is read is what `serde_json` reads, and what is sound is read here. The rest is left to it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use inspan_testkit::{case_folders, fixture_dir, harmed};
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::*;

/// Each kind that a line's struct may ask for.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
struct Typed<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
    maybe: Option<bool>,
    owned: String,
    float: f64,
    small: u8,
    signed: i64,
    list: Vec<u64>,
    pair: Option<(u64, bool)>,
    by_name: BTreeMap<String, Value>,
    by_number: BTreeMap<u8, ()>,
    word: Option<Word>,
    inner: Option<Box<Typed<'a>>>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Word {
    One,
}

/// What was read of the text as this type, if it was; it has to be what `serde_json` reads.
fn read<'a, T: Deserialize<'a> + Debug + PartialEq>(text: &'a str) -> Option<T> {
    let value = quick::<T>(text).ok()?;
    assert_eq!(serde_json::from_str::<T>(text).ok().as_ref(), Some(&value), "{text}");
    Some(value)
}

/// Whether the text was read as each type; nothing may be read in one that is not sound.
fn reads(text: &str) -> [bool; 3] {
    let ignored = quick::<IgnoredAny>(text).is_ok();
    assert!(!ignored || serde_json::from_str::<IgnoredAny>(text).is_ok(), "{text}");
    [read::<Value>(text).is_some(), ignored, read::<Typed<'_>>(text).is_some()]
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

#[test]
fn what_is_sound_is_read() {
    let deep = nested(127);
    let sound = [
        "null",
        " true\n",
        "\tfalse\r",
        "0",
        "7",
        "[0,10,123456789012345678,1234567890123456789,18446744073709551616]",
        "[-0,-1,-9223372036854775809,0.5,1e3,-1.25E-2,1.7976931348623157e308]",
        "[1 , 2]",
        r#""""#,
        r#""plain ä 🦀""#,
        r#""\"\\\/\b\f\n\r\t""#,
        r#""\u0041\n\ud83e\udd80 ä""#,
        r#""sixteen bytes...""#,
        r#""sixteen bytes, and then\nmany more of them than sixteen""#,
        "[]",
        "{ }",
        r#"{"a":[{"b":{}},[[]],null],"a":{"\n":"\\"}}"#,
        &deep,
    ];
    assert_eq!(sound.map(|text| (text, reads(text)[..2] == [true, true])), sound.map(|text| (text, true)));
}

#[test]
fn each_type_is_read() {
    let line = r#"{"text":"as it is","maybe":true,"owned":"a\tb","float":3,"small":255,"signed":-5,
        "list":[1,2],"by_name":{"a":1.5,"b\"":[]},"unknown":{"a":[1,-2,"\u00e4"]},
        "inner":{"maybe":null,"text":"a\\b"}}"#;
    let inner = Typed { text: "a\\b".into(), ..Typed::default() };
    let expected = Typed {
        text: "as it is".into(),
        maybe: Some(true),
        owned: "a\tb".to_owned(),
        float: 3.0,
        small: 255,
        signed: -5,
        list: vec![1, 2],
        by_name: BTreeMap::from([("a".to_owned(), json!(1.5)), ("b\"".to_owned(), json!([]))]),
        inner: Some(Box::new(inner)),
        ..Typed::default()
    };
    let typed = read::<Typed<'_>>(line).unwrap();
    let borrowed =
        matches!((&typed.text, &typed.inner.as_ref().unwrap().text), (Cow::Borrowed(_), Cow::Owned(_)));
    assert_eq!((typed, borrowed), (expected, true));
    // What is seldom is left to the other reader, and read all the same.
    let line = r#"{"word":"one","by_number":{"7":null},"pair":[1,true]}"#;
    let (by_number, pair) = (BTreeMap::from([(7, ())]), Some((1, true)));
    assert_eq!(read::<Typed<'_>>(line), None);
    assert_eq!(
        from_str(line).ok(),
        Some(Typed { word: Some(Word::One), by_number, pair, ..Typed::default() })
    );
}

/// Asks for one kind, and would take any.
#[derive(Debug, PartialEq)]
struct Greedy<const KIND: usize>;

impl<'de, const KIND: usize> Deserialize<'de> for Greedy<KIND> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = ();

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }
            fn visit_bool<E>(self, _: bool) -> Result<(), E> {
                Ok(())
            }
            fn visit_u64<E>(self, _: u64) -> Result<(), E> {
                Ok(())
            }
            fn visit_str<E>(self, _: &str) -> Result<(), E> {
                Ok(())
            }
            fn visit_unit<E>(self) -> Result<(), E> {
                Ok(())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
                while items.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(())
            }
        }
        let taken = match KIND {
            0 => deserializer.deserialize_bool(Any),
            1 => deserializer.deserialize_u64(Any),
            2 => deserializer.deserialize_str(Any),
            3 => deserializer.deserialize_string(Any),
            4 => deserializer.deserialize_unit(Any),
            5 => deserializer.deserialize_seq(Any),
            6 => deserializer.deserialize_map(Any),
            _ => deserializer.deserialize_struct("", &[], Any),
        };
        taken.map(|()| Self)
    }
}

#[test]
fn who_asks_for_one_kind_gets_no_other() {
    for text in ["true", "1", "\"a\"", "null", "[1]", "{\"a\":1}"] {
        let taken = [
            read::<Greedy<0>>(text).is_some(),
            read::<Greedy<1>>(text).is_some(),
            read::<Greedy<2>>(text).is_some(),
            read::<Greedy<3>>(text).is_some(),
            read::<Greedy<4>>(text).is_some(),
            read::<Greedy<5>>(text).is_some(),
            read::<Greedy<6>>(text).is_some(),
            read::<Greedy<7>>(text).is_some(),
        ];
        let kind = text.as_bytes()[0];
        let expected = [b't', b'1', b'"', b'"', b'n', b'[', b'{', b'{'].map(|asked| asked == kind);
        assert_eq!(taken, expected, "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_as_the_other_reader_tells_it() {
    let deep = nested(128);
    let wrong = [
        "",
        " ",
        "nul",
        "nulll",
        "truefalse",
        "1 2",
        "01",
        "[01]",
        "[00,1]",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e999",
        "0x1",
        "\"",
        "\"a\nb\"",
        "\"a\u{1f}\"",
        r#""\"#,
        r#""\x""#,
        r#""\u00zz""#,
        r#""\u00""#,
        r#""\ud83e""#,
        r#""\ud83e\u0041""#,
        "[",
        "[1",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1}",
        "{",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{"a":1]"#,
        r#"{1:2}"#,
        r#"{"a":1}}"#,
        "ä",
        &deep,
    ];
    for text in wrong {
        // What nobody asks for may lie as deep as it likes, and need not name characters that there are.
        let ignored = serde_json::from_str::<IgnoredAny>(text).is_ok();
        assert_eq!((read::<Value>(text), read::<Typed<'_>>(text)), (None, None), "{text}");
        assert_eq!(from_str::<IgnoredAny>(text).is_ok(), ignored, "{text}");
        let said = serde_json::from_str::<Value>(text).map_err(|error| error.to_string());
        assert_eq!(from_str::<Value>(text).map_err(|error| error.to_string()), said, "{text}");
    }
    let unfit = [
        r#"{"small":256}"#,
        r#"{"small":1.5}"#,
        r#"{"signed":18446744073709551615}"#,
        r#"{"owned":1}"#,
        r#"{"list":[true]}"#,
        r#"{"list":"1"}"#,
        r#"{"pair":[1]}"#,
        r#"{"pair":[1,true,2]}"#,
        r#"{"by_number":{"a":null}}"#,
        r#"{"word":"two"}"#,
        r#"{"small":1,"small":2}"#,
    ];
    for text in unfit {
        let said = serde_json::from_str::<Typed<'_>>(text).map_err(|error| error.to_string());
        assert!(said.is_err(), "{text}");
        assert_eq!(from_str::<Typed<'_>>(text).map_err(|error| error.to_string()), said);
    }
}

/// The lines of every recorded transcript of the program whose lines are read here.
fn recorded() -> Vec<String> {
    let cases = case_folders(fixture_dir().join("providers/claude")).unwrap();
    let transcripts = cases.iter().map(|case| std::fs::read(case.join("transcript.jsonl")).unwrap());
    transcripts
        .flat_map(|bytes| String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn recorded_lines_are_read() {
    let lines = recorded();
    for line in &lines {
        let sound = serde_json::from_str::<IgnoredAny>(line).is_ok();
        assert_eq!(reads(line)[..2], [sound, sound], "{line}");
    }
    assert!(lines.len() > 500, "{} lines", lines.len());
}

proptest! {
    /// Harmed lines are read as the other reader reads them, or not at all.
    #[test]
    fn harmed_lines_are_read_alike(seed in any::<u64>()) {
        thread_local!(static LINES: Vec<String> = recorded());
        LINES.with(|lines| {
            let line = &lines[seed as usize % lines.len()];
            reads(&String::from_utf8_lossy(&harmed(line.as_bytes(), seed)));
        });
    }

    /// So is any text of the signs of JSON.
    #[test]
    fn any_signs_are_read_alike(
        signs in prop::collection::vec(
            prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\"small\":", "\"inner\":{", "\\", "\\n", "\\u00e4", "ä", " ",
                "\n", "0", "12", "-", ".", "e", "null", "true", "false", "0123456789abcdef", "\u{1}",
            ]),
            0..12,
        ),
    ) {
        reads(&signs.concat());
    }

    #[test]
    fn a_text_comes_back_as_it_was(text in any::<String>(), few in "[\\\\\"\n\t/a-c]{0,40}") {
        for text in [text, few] {
            let line = format!("{{\"text\":{0},\"owned\":{0}}}", Value::from(text.clone()));
            let expected = Typed { text: text.clone().into(), owned: text.clone(), ..Typed::default() };
            prop_assert_eq!(read::<Typed<'_>>(&line), Some(expected));
        }
    }
}
