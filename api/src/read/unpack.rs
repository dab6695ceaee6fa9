//! Bytes as they come → text: zip, gzip or plain, with bounds on what an archive may grow to.

use std::borrow::Cow;
use std::io::{Cursor, Read};

use flate2::read::MultiGzDecoder;
use zip::ZipArchive;

use crate::problem::{Failure, plain};

/// The largest text that is read, unpacked: 2 GiB, from wherever it comes. A cluster of a million pods is some 1 GB; what is
/// above the limit is a mistake or an attack.
pub(super) const MAX_BYTES: u64 = 2 << 30;
/// DEFLATE cannot grow by more than this.
const MAX_RATIO: u64 = 1040;
/// The file inside a zip.
const SNAPSHOT: &str = "snapshot.json";

type Progress<'a> = Option<&'a (dyn Fn(u64, u64) + Sync)>;

/// The text inside, without byte order mark.
pub(super) fn text_of<'a>(name: &str, bytes: &'a [u8], progress: Progress<'_>) -> Result<Cow<'a, [u8]>, Failure> {
    let fail = |message: &str| Failure::Unreadable(format!("{name}: {message}"));
    let text = match bytes {
        [] => return Err(fail("the file is empty")),
        [b'P', b'K', 3 | 5, 4 | 6, ..] => Cow::Owned(unzip(name, bytes, progress)?),
        [0x1f, 0x8b, ..] => Cow::Owned(gunzip(name, bytes, progress)?),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Err(fail("the text is UTF-16; expected UTF-8")),
        plain => Cow::Borrowed(plain),
    };
    if text.len() as u64 > MAX_BYTES {
        return Err(fail(&too_large(MAX_BYTES)));
    }
    Ok(match text {
        Cow::Borrowed([0xef, 0xbb, 0xbf, rest @ ..]) => Cow::Borrowed(rest),
        Cow::Owned(mut owned) if owned.starts_with(&[0xef, 0xbb, 0xbf]) => {
            owned.drain(..3);
            Cow::Owned(owned)
        }
        text => text,
    })
}

/// The text as UTF-8.
pub(super) fn utf8<'a>(name: &str, text: &'a [u8]) -> Result<&'a str, Failure> {
    std::str::from_utf8(text).map_err(|error| {
        let line = text[..error.valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        Failure::Unreadable(format!("{name}: line {line} is not UTF-8 text"))
    })
}

/// What to say of a text above the limit.
fn too_large(most: u64) -> String {
    format!("larger than {} MiB: at most that much is read, unpacked", most >> 20)
}

/// All of a file or of standard input, up to the limit.
pub(super) fn read_whole(name: &str, from: &mut impl Read, expected: u64) -> Result<Vec<u8>, Failure> {
    read_bounded(from, expected.min(MAX_BYTES), MAX_BYTES, None).map_err(|why| Failure::Unreadable(format!("{name}: {why}")))
}

fn unzip(name: &str, bytes: &[u8], progress: Progress<'_>) -> Result<Vec<u8>, Failure> {
    let fail = |message: String| Failure::Unreadable(format!("{name}: {message}"));
    let broken = |error: zip::result::ZipError| {
        // The library's own names say nothing to a user.
        let cause = error.to_string();
        let cause = if cause.contains("::") { "its directory cannot be read".to_owned() } else { plain(&cause) };
        fail(format!("not a complete zip archive ({cause})"))
    };
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(broken)?;
    let names: Vec<String> = archive.file_names().map(|name| name.map_or_else(|_| "?".to_owned(), Cow::into_owned)).collect();
    let is_snapshot = |name: &&String| *name == SNAPSHOT || name.ends_with("/snapshot.json");
    let found: Vec<&String> = names.iter().filter(is_snapshot).collect();
    let at = match found.as_slice() {
        [] => return Err(fail(format!("no snapshot.json in the archive, which {}", held(&names)))),
        [_] if archive.has_duplicate_names() => {
            return Err(fail(format!(
                "the archive holds several files of one name ({}); expected one snapshot.json",
                plain(found[0])
            )));
        }
        [one] => archive.index_for_name(one).ok_or_else(|| fail("snapshot.json cannot be found in the archive".to_owned()))?,
        [first, second, ..] => {
            let (first, second) = (plain(first), plain(second));
            return Err(fail(format!("{} snapshots in the archive ({first}, {second}); expected one", found.len())));
        }
    };
    let mut file = archive.by_index(at).map_err(broken)?;
    let (declared, packed) = (file.size(), file.compressed_size());
    if declared > MAX_BYTES {
        return Err(fail(format!("snapshot.json would be {declared} bytes; at most 2 GiB are read")));
    }
    let expected = declared.min(packed.saturating_mul(MAX_RATIO)).min(bytes.len() as u64 * MAX_RATIO);
    read_bounded(&mut file, expected, MAX_BYTES, progress).map_err(|why| fail(format!("snapshot.json: {why}")))
}

/// The files of an archive, for a message.
fn held(names: &[String]) -> String {
    let first: Vec<_> = names.iter().take(5).map(|name| plain(name)).collect();
    match names.len() {
        0 => "is empty".to_owned(),
        1 => format!("holds 1 file: {}", first.join(", ")),
        n if n > first.len() => format!("holds {n} files: {}, …", first.join(", ")),
        n => format!("holds {n} files: {}", first.join(", ")),
    }
}

fn gunzip(name: &str, bytes: &[u8], progress: Progress<'_>) -> Result<Vec<u8>, Failure> {
    // The last four bytes hold the size modulo 2³²: a hint only.
    let hint = bytes.last_chunk::<4>().map_or(0, |tail| u64::from(u32::from_le_bytes(*tail)));
    let expected = hint.min(bytes.len() as u64 * MAX_RATIO);
    read_bounded(&mut MultiGzDecoder::new(bytes), expected, MAX_BYTES, progress).map_err(|why| {
        Failure::Unreadable(format!(
            "{name}: {}",
            if why == too_large(MAX_BYTES) { why } else { format!("not a complete gzip file: {why}") }
        ))
    })
}

/// Reads everything, at most `most` bytes, in pieces so that progress can be told.
fn read_bounded(from: &mut impl Read, expected: u64, most: u64, progress: Progress<'_>) -> Result<Vec<u8>, String> {
    const PIECE: u64 = 4 << 20;
    let mut text = Vec::new();
    let room = usize::try_from(expected).map_err(|_| "too large for this machine".to_owned())?;
    text.try_reserve(room).map_err(|_| format!("{room} bytes do not fit in memory"))?;
    loop {
        let read = from.by_ref().take(PIECE).read_to_end(&mut text).map_err(|error| error.to_string())?;
        if read == 0 {
            return Ok(text);
        }
        if text.len() as u64 > most {
            return Err(too_large(most));
        }
        if let Some(progress) = progress {
            // Unpacking is a part of the work that the reader's own count does not cover.
            progress(0, expected.max(text.len() as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_never_ends_is_given_up() {
        let endless = read_bounded(&mut std::io::repeat(0), u64::MAX / 4, 16 << 20, None);
        assert!(endless.is_err(), "no room for that much");
        assert!(too_large(MAX_BYTES).contains("2048 MiB"));
        assert_eq!(read_bounded(&mut std::io::repeat(0), 0, 16 << 20, None), Err(too_large(16 << 20)));
        assert_eq!(read_bounded(&mut [1_u8, 2].as_slice(), 0, 16 << 20, None), Ok(vec![1, 2]));
    }

    #[test]
    fn byte_order_marks_go_and_archives_open() {
        assert_eq!(text_of("x", b"\xef\xbb\xbf{}", None).as_deref(), Ok(b"{}".as_slice()));
        assert!(text_of("x", b"\xfe\xff\0{", None).is_err());
        assert!(utf8("x", b"a\nb\xff").is_err_and(|failure| failure.to_string().contains("line 2")));
    }
}
