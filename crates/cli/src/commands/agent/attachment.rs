//! Files that go with a prompt. Their first bytes decide what they are, not their names.

use std::{fs, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use inspan_engine::Attachment;

use crate::failure::Failure;

/// The largest file, in bytes: what vendors take in one message is less.
const LARGEST: u64 = 32 << 20;

/// Pictures that vendors read, by their first bytes and the bytes at a later place.
const PICTURES: [(&[u8], usize, &[u8], &str); 4] = [
    (b"\x89PNG\r\n\x1a\n", 0, b"", "image/png"),
    (b"\xff\xd8\xff", 0, b"", "image/jpeg"),
    (b"GIF8", 0, b"", "image/gif"),
    (b"RIFF", 8, b"WEBP", "image/webp"),
];

/// The file as an attachment.
pub(super) fn read(file: &Path) -> Result<Attachment, Failure> {
    let broken = |why: &str| Failure::usage(format!("cannot attach {}: {why}", file.display()));
    let size = fs::metadata(file).map_err(|error| broken(&error.to_string()))?.len();
    if size > LARGEST {
        return Err(broken(&format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    let bytes = fs::read(file).map_err(|error| broken(&error.to_string()))?;
    if let Some(media_type) = picture(&bytes) {
        return Ok(Attachment::Image { media_type: media_type.to_owned(), data: STANDARD.encode(&bytes) });
    }
    let name = file.file_name().map_or_else(|| file.display().to_string(), |name| name.display().to_string());
    match String::from_utf8(bytes) {
        Ok(content) => Ok(Attachment::Text { name, content }),
        Err(_) => Err(broken("it is neither text nor an image (PNG, JPEG, GIF, WebP)")),
    }
}

fn picture(bytes: &[u8]) -> Option<&'static str> {
    let is = |(begins, at, then, _): &&(&[u8], usize, &[u8], &str)| {
        bytes.starts_with(begins) && bytes.get(*at..).is_some_and(|rest| *at == 0 || rest.starts_with(then))
    };
    PICTURES.iter().find(is).map(|(.., media_type)| *media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attached(name: &str, bytes: &[u8]) -> Result<Attachment, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        read(&file).map_err(|failure| failure.message.replace(&folder.path().display().to_string(), "~"))
    }

    #[test]
    fn a_file_is_what_its_bytes_say() {
        let image = |media_type: &str, data: &str| {
            Ok(Attachment::Image { media_type: media_type.to_owned(), data: data.to_owned() })
        };
        let rows = [
            (attached("a.txt", b"\x89PNG\r\n\x1a\n"), image("image/png", "iVBORw0KGgo=")),
            (attached("a.png", b"\xff\xd8\xff"), image("image/jpeg", "/9j/")),
            (attached("a", b"RIFF1234WEBP"), image("image/webp", "UklGRjEyMzRXRUJQ")),
            (
                attached("a.md", "é".as_bytes()),
                Ok(Attachment::Text { name: "a.md".to_owned(), content: "é".to_owned() }),
            ),
            (
                attached("a.bin", b"RIFF\xff"),
                Err("cannot attach ~/a.bin: it is neither text nor an image (PNG, JPEG, GIF, WebP)"
                    .to_owned()),
            ),
        ];
        for (seen, expected) in rows {
            assert_eq!(seen, expected);
        }
    }
}
