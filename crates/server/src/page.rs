//! The files of the web page, part of the program: `page/` beside `src/`. A debug build reads them from the sources, so
//! that a change is seen at once. Browsers are sent scripts and styles without their comments, which have the types that
//! the scripts are checked against.

use std::borrow::Cow;

use rust_embed::RustEmbed;

use crate::token::hex;

/// What the page may load and do: nothing from another host, no script or style within a document, no frame around it.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; \
                                           frame-ancestors 'none'; object-src 'none'";

#[derive(RustEmbed)]
#[folder = "page/"]
#[exclude = "*.md"]
#[exclude = "*.d.ts"]
#[exclude = "*.txt"]
struct PageFiles;

/// A file of the page, as it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The value of `ETag`: it changes with the content.
    pub etag: String,
    /// The content.
    pub bytes: Cow<'static, [u8]>,
}

/// The file at a path of the URL, such as `/js/main.js`; `/` is the page itself. None if the page has no such file.
pub fn asset(path: &str) -> Option<Asset> {
    let name = match path.trim_start_matches('/') {
        "" => "index.html",
        name => name,
    };
    let content_type = content_type(name)?;
    let file = PageFiles::get(name)?;
    let etag = format!("\"{}\"", hex(&file.metadata.sha256_hash()[..16]));
    Some(Asset { content_type, etag, bytes: served(name, file.data) })
}

/// A file of the page as it is served.
fn served(name: &str, source: Cow<'static, [u8]>) -> Cow<'static, [u8]> {
    let begins = match name.rsplit_once('.') {
        Some((stem, "js")) if stem.starts_with("js/") => "/**",
        Some((_, "css")) => "/*",
        _ => return source,
    };
    match std::str::from_utf8(&source) {
        Ok(text) => Cow::Owned(code_of(text, begins).into_bytes()),
        Err(_) => source,
    }
}

/// A text without its comments, those between `begins` and `*/` and lines that begin with `//`, and without the indents of
/// its lines: no text that the page shows has a line break.
fn code_of(text: &str, begins: &str) -> String {
    let (mut code, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, comment)) = rest.split_once(begins) {
        code.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    code.lines().filter(is_code).flat_map(|line| [line.trim(), "\n"]).collect()
}

/// The value of the `Link` header of the page: its modules, so that a browser asks for all of them at once.
pub(crate) fn preloads() -> String {
    let modules = names().filter(|name| name.ends_with(".js"));
    modules.map(|name| format!("</{name}>; rel=modulepreload")).collect::<Vec<_>>().join(", ")
}

/// The names of all files of the page.
pub(crate) fn names() -> impl Iterator<Item = String> {
    PageFiles::iter().map(Cow::into_owned)
}

/// The media type of a file by the end of its name. A file of any other kind is not served.
fn content_type(name: &str) -> Option<&'static str> {
    Some(match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
