//! Reads a request that was captured: by `nc`, by `curl -v`, or from the log of a proxy.
//!
//! It needs nothing of the rest of the program, so that a fuzz target can include it.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};

/// The most lines of a head.
const MOST_LINES: usize = 1_000;

/// A request, and what had to be decided to read it.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) request: Request<Vec<u8>>,
    pub(crate) notes: Vec<String>,
}

/// Why a text is no request. Lines are counted from 1.
#[derive(Debug)]
pub(crate) struct Unreadable {
    line: usize,
    reason: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for Unreadable {}

/// Reads head and body. The head has a header a line, perhaps after a request line, and ends with an empty line; lines may
/// end with LF alone. In what `curl -v` prints, each line of the head begins with `> `.
pub(crate) fn read(text: &[u8]) -> Result<Captured, Unreadable> {
    let mut rest = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let (mut method, mut uri, mut headers) =
        (Method::POST, Uri::from_static("/"), HeaderMap::new());
    let (mut line, mut is_curl, mut has_begun) = (0, false, false);
    let wrong = |line, reason| Unreadable { line, reason };
    while !rest.is_empty() {
        line += 1;
        if line > MOST_LINES {
            return Err(wrong(
                line,
                "the head has more than 1,000 lines: an empty line ends it",
            ));
        }
        let whole;
        (whole, rest) = next(rest);
        let of_curl = whole.strip_prefix(b">");
        // What stands before the request: of the connection by `curl`, and of the answer by `receiver send`.
        if !has_begun && (whole.is_empty() || whole.starts_with(b"* ") || whole.starts_with(b"#")) {
            continue;
        }
        is_curl |= !has_begun && of_curl.is_some();
        let content = match (is_curl, of_curl) {
            (true, Some(content)) => content.trim_ascii_start(),
            (true, None) if whole.starts_with(b"* ") => continue,
            (true, None) if !whole.is_empty() => {
                return Err(wrong(
                    line,
                    "it does not begin with `>`, as the lines before it",
                ));
            }
            _ => whole,
        };
        if content.is_empty() {
            break;
        }
        if !has_begun && let Some(first) = request_line(content) {
            (method, uri) = first.map_err(|reason| wrong(line, reason))?;
            has_begun = true;
            continue;
        }
        has_begun = true;
        if content.starts_with(b" ") || content.starts_with(b"\t") {
            return Err(wrong(
                line,
                "it begins with a blank: write a header in one line",
            ));
        }
        // A name of HTTP/2 begins with a colon.
        let colon = content
            .iter()
            .skip(1)
            .position(|&byte| byte == b':')
            .map(|at| at + 1);
        let (name, value) = content.split_at(
            colon.ok_or_else(|| wrong(line, "it is no header: there is no colon in it"))?,
        );
        let value = value[1..].trim_ascii();
        match name {
            b":method" => {
                method = Method::from_bytes(value)
                    .map_err(|_| wrong(line, "it has no method of HTTP"))?;
            }
            b":path" => {
                uri = Uri::try_from(value).map_err(|_| wrong(line, "it has no path of a URL"))?;
            }
            [b':', ..] => {}
            _ => {
                let name = HeaderName::from_bytes(name)
                    .map_err(|_| wrong(line, "it does not begin with the name of a header"))?;
                let value = HeaderValue::from_bytes(value)
                    .map_err(|_| wrong(line, "its value has control characters"))?;
                headers
                    .try_append(name, value)
                    .map_err(|_| wrong(line, "there are too many headers"))?;
            }
        }
    }
    if headers.is_empty() {
        return Err(wrong(line.max(1), "there are no headers before it"));
    }
    let mut notes = Vec::new();
    let body = body(rest, &mut headers, &mut notes);
    let mut request = Request::new(body);
    (
        *request.method_mut(),
        *request.uri_mut(),
        *request.headers_mut(),
    ) = (method, uri, headers);
    Ok(Captured { request, notes })
}

/// The first line without its end, and what follows it.
fn next(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|&byte| byte == b'\n');
    let (line, rest) = match end {
        Some(end) => (&text[..end], &text[end + 1..]),
        None => (text, &[][..]),
    };
    (line.strip_suffix(b"\r").unwrap_or(line), rest)
}

/// `POST /webhooks HTTP/1.1`. `None` if a line is none.
fn request_line(line: &[u8]) -> Option<Result<(Method, Uri), &'static str>> {
    let mut words = line.split(|&byte| byte == b' ').filter(|it| !it.is_empty());
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with(b"HTTP/") {
        return None;
    }
    let read = Method::from_bytes(method)
        .ok()
        .zip(Uri::try_from(target).ok());
    Some(read.ok_or("it has no method and URL of HTTP"))
}

/// The body, without what surrounds it in a file: the frames of chunks, and a line end that an editor added.
fn body(rest: &[u8], headers: &mut HeaderMap, notes: &mut Vec<String>) -> Vec<u8> {
    let is_chunked = headers
        .get("transfer-encoding")
        .is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"chunked"));
    if is_chunked {
        return match chunks(rest) {
            Some(body) => {
                notes.push("the body was joined from the chunks in which it was sent".to_owned());
                body
            }
            None => {
                notes.push(
                    "the body has no frames of chunks: it is taken as it stands there".to_owned(),
                );
                rest.to_vec()
            }
        };
    }
    let declared = headers
        .get("content-length")
        .and_then(|it| it.to_str().ok()?.parse::<usize>().ok());
    match declared {
        Some(length) if length < rest.len() => {
            let more = rest.len() - length;
            notes.push(format!(
                "{more} bytes after the body are left out, since `Content-Length` is {length}"
            ));
            rest[..length].to_vec()
        }
        None if rest.ends_with(b"\n") => {
            notes.push("the body ends with a line end, which is taken as a part of it: there is no `Content-Length`".to_owned());
            rest.to_vec()
        }
        _ => rest.to_vec(),
    }
}

/// Joins chunks (RFC 9112, section 7.1). `None` if they are none, or the last one is missing.
fn chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let (line, after) = next(rest);
        let size = line.split(|&byte| byte == b';').next()?.trim_ascii();
        let size = str::from_utf8(size)
            .ok()
            .filter(|it| !it.starts_with('+'))?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(after.get(..size)?);
        let end;
        (end, rest) = next(&after[size..]);
        if !end.is_empty() {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Captured {
        read(text.as_bytes()).unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    #[test]
    fn requests_are_read_in_all_their_forms() {
        let expected = "POST /a?b=1 X-A=1,X-A=2,Content-Length=2 {}";
        for text in [
            "POST /a?b=1 HTTP/1.1\r\nX-A: 1\r\nX-A:2\r\nContent-Length: 2\r\n\r\n{}",
            "POST /a?b=1 HTTP/1.1\nX-A: 1\nX-A: 2 \nContent-Length: 2\n\n{}\n",
            "\u{feff}POST /a?b=1 HTTP/1.1\nx-a: 1\nx-a: 2\ncontent-length: 2\n\n{}",
            "*   Trying 127.0.0.1:3000...\n* Connected\n> POST /a?b=1 HTTP/1.1\n> X-A: 1\n> X-A: 2\n> Content-Length: 2\n>\n{}",
            "> POST /a?b=1 HTTP/1.1\r\n> X-A: 1\r\n* a note\r\n> X-A: 2\r\n> Content-Length: 2\r\n> \r\n{}\r\n\r\n",
            "#1 200 OK in 1ms\n> POST /a?b=1 HTTP/1.1\n> X-A: 1\n> X-A: 2\n> Content-Length: 2\n>\n{}\n#2 200 OK",
            ":method: POST\n:path: /a?b=1\n:scheme: https\nx-a: 1\nx-a: 2\ncontent-length: 2\n\n{}",
        ] {
            let Captured { request, .. } = read_text(text);
            let headers = request.headers().iter().map(|(name, value)| {
                let name = if name == "x-a" {
                    "X-A"
                } else {
                    "Content-Length"
                };
                format!("{name}={}", value.to_str().unwrap())
            });
            let headers: Vec<_> = headers.collect();
            let body = str::from_utf8(request.body()).unwrap();
            let found = format!(
                "{} {} {} {body}",
                request.method(),
                request.uri(),
                headers.join(",")
            );
            assert_eq!(found, expected, "{text:?}");
        }
        let plain = read_text("x-a: 1\n\n{}\n");
        assert_eq!(
            (plain.request.method(), plain.request.uri().path()),
            (&Method::POST, "/")
        );
        assert_eq!(plain.request.body(), b"{}\n");
        assert!(plain.notes[0].contains("ends with a line end"), "{plain:?}");
        assert!(read_text("x-a: 1").request.body().is_empty());
    }

    #[test]
    fn chunks_are_joined() {
        let head = "x-a: 1\r\ntransfer-encoding: chunked\r\n\r\n";
        for (body, joined) in [
            ("3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", "abcde"),
            ("A\n0123456789\n0\n\n", "0123456789"),
            ("0\r\n\r\n", ""),
            // They are none, or not complete.
            ("abc", "abc"),
            ("3\r\nabc", "3\r\nabc"),
            ("3\r\nabcd\r\n0\r\n", "3\r\nabcd\r\n0\r\n"),
            ("+3\r\nabc\r\n0\r\n", "+3\r\nabc\r\n0\r\n"),
            ("ffffffffffffffff\r\nabc", "ffffffffffffffff\r\nabc"),
        ] {
            let read = read_text(&format!("{head}{body}"));
            assert_eq!(read.request.body(), joined.as_bytes(), "{body:?}");
            assert_eq!(read.notes.len(), 1);
        }
    }

    #[test]
    fn what_is_no_request_is_named_by_its_line() {
        for (text, line, reason) in [
            ("", 1, "no headers"),
            ("\n\n\n", 3, "no headers"),
            ("{\"a\":1}\n", 1, "the name of a header"),
            ("hello\n\n", 1, "no colon"),
            ("x-a: 1\nhello\n", 2, "no colon"),
            ("x-a: 1\n more\n\n", 2, "begins with a blank"),
            ("x-a: a\u{1}b\n\n", 1, "control characters"),
            ("POST a b HTTP/1.1\nx-a: 1\n", 1, "no colon"),
            ("P@ST / HTTP/1.1\nx-a: 1\n", 1, "no method"),
            ("> POST / HTTP/1.1\nx-a: 1\n", 2, "does not begin with `>`"),
            (":method: \nx-a: 1\n", 1, "no method"),
        ] {
            let error = read(text.as_bytes()).unwrap_err();
            assert_eq!(error.line, line, "{text:?}");
            assert!(error.to_string().contains(reason), "{text:?}: {error}");
        }
        let long = "x-a: 1\n".repeat(1_001);
        assert_eq!(read(long.as_bytes()).unwrap_err().line, 1_001);
    }
}
