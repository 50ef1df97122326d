//! Bodies of a mebibyte that cost more than they have to if their reader is careless.

/// JSON objects, each with its name: of one chat, and with a text that is not read otherwise.
pub fn odd(chat: &str) -> [(&'static str, String); 4] {
    let object = |rest: String| format!(r#"{{"id":"{chat}",{rest}}}"#);
    let room = (1 << 20) - 100;
    [
        (
            "nesting",
            object(format!(
                r#""a":{}{}"#,
                "[".repeat(room / 2),
                "]".repeat(room / 2)
            )),
        ),
        ("key", object(format!(r#""{}":1"#, "x".repeat(room)))),
        (
            "escapes",
            object(format!(r#""a":"{}""#, r"\u0078".repeat(room / 6))),
        ),
        (
            "commas",
            object(format!(r#""a":[1{}]"#, ",1".repeat(500_000))),
        ),
    ]
}
