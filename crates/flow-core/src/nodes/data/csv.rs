//! CSV as RFC 4180 defines it, read strictly: every row has as many fields as the first, and quotes are
//! closed. Programs end lines with a line feed, a carriage return, or both.

use std::{iter::Peekable, str::Chars};

use serde_json::{Map, Value};

use super::parse::ParseFault;

/// The names of the columns are repeated in every row; together they may take so many bytes.
const MAX_NAMES: usize = 32 << 20;

/// A list with an item for each row: a mapping if the first row is a header, else a list. Fields are texts.
pub(super) fn parse(text: &str, separator: char, header: bool) -> Result<Value, ParseFault> {
    let mut reader = CsvReader { chars: text.chars().peekable(), separator, line: 1, column: 1 };
    let mut names: Option<Vec<String>> = None;
    let (mut width, mut repeated) = (None, 0);
    let mut rows = Vec::new();
    while let Some(Row { line, fields }) = reader.row()? {
        let known = *width.get_or_insert(fields.len());
        if known != fields.len() {
            let plural = if fields.len() == 1 { "" } else { "s" };
            let first = if header { "header" } else { "first row" };
            let found = fields.len();
            let reason = format!("this row has {found} field{plural}, and the {first} has {known}");
            return Err(ParseFault::at(line, 1, reason));
        }
        match &names {
            None if header => names = Some(columns(line, fields)?),
            None => rows.push(Value::Array(fields.into_iter().map(|field| field.text.into()).collect())),
            Some(names) => {
                repeated += names.iter().map(String::len).sum::<usize>();
                if repeated > MAX_NAMES {
                    return Err(ParseFault::whole("the rows repeat the names of the columns too often"));
                }
                let fields = fields.into_iter().map(|field| Value::String(field.text));
                rows.push(Value::Object(names.iter().cloned().zip(fields).collect::<Map<_, _>>()));
            }
        }
    }
    Ok(Value::Array(rows))
}

/// The names of the columns, which differ.
fn columns(line: usize, fields: Vec<Field>) -> Result<Vec<String>, ParseFault> {
    let mut seen = std::collections::HashSet::new();
    if let Some(twice) = fields.iter().find(|field| !seen.insert(field.text.as_str())) {
        return Err(ParseFault::at(line, twice.column, format!("two columns are named `{}`", twice.text)));
    }
    Ok(fields.into_iter().map(|field| field.text).collect())
}

struct CsvReader<'t> {
    chars: Peekable<Chars<'t>>,
    separator: char,
    line: usize,
    column: usize,
}

struct Row {
    line: usize,
    fields: Vec<Field>,
}

struct Field {
    column: usize,
    text: String,
}

impl CsvReader<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.chars.next()?;
        match next {
            '\r' if self.chars.peek() == Some(&'\n') => self.column += 1,
            '\r' | '\n' => (self.line, self.column) = (self.line + 1, 1),
            _ => self.column += 1,
        }
        Some(next)
    }

    /// Takes one line end of any kind, if there is one.
    fn line_end(&mut self) -> bool {
        let is_return = self.chars.peek() == Some(&'\r') && self.next().is_some();
        let is_feed = self.chars.peek() == Some(&'\n') && self.next().is_some();
        is_return || is_feed
    }

    /// The next row that is not empty.
    fn row(&mut self) -> Result<Option<Row>, ParseFault> {
        while self.line_end() {}
        if self.chars.peek().is_none() {
            return Ok(None);
        }
        let mut row = Row { line: self.line, fields: Vec::new() };
        loop {
            row.fields.push(self.field()?);
            if self.chars.peek() == Some(&self.separator) {
                self.next();
            } else {
                self.line_end();
                return Ok(Some(row));
            }
        }
    }

    /// A field, up to the separator, the line end or the end of the text.
    fn field(&mut self) -> Result<Field, ParseFault> {
        let (line, column) = (self.line, self.column);
        let mut text = String::new();
        if self.chars.peek() == Some(&'"') {
            self.next();
            loop {
                match self.next() {
                    Some('"') if self.chars.peek() == Some(&'"') => text.extend(self.next()),
                    Some('"') => break,
                    Some(other) => text.push(other),
                    None => return Err(ParseFault::at(line, column, "this quote is not closed")),
                }
            }
            let place = (self.line, self.column);
            return match self.is_field_end() {
                true => Ok(Field { column, text }),
                false => Err(ParseFault::at(place.0, place.1, "text after a closing quote")),
            };
        }
        while !self.is_field_end() {
            text.extend(self.next());
        }
        Ok(Field { column, text })
    }

    fn is_field_end(&mut self) -> bool {
        self.chars.peek().is_none_or(|next| ['\r', '\n', self.separator].contains(next))
    }
}
