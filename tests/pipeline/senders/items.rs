//! A token that each item of a batch has, and a challenge that is a POST without a proof, as of Microsoft Graph.

use super::*;

fn graph() -> Sender {
    Sender::named("microsoft-graph", None).unwrap()
}

fn secrets() -> Secrets {
    Secrets::new(["old", "new"].map(|text| Secret::new(text).unwrap())).unwrap()
}

fn item(token: &str) -> String {
    format!(r#"{{"changeType":"updated","clientState":{token}}}"#)
}

async fn status(body: &str) -> u16 {
    let answered = receive(secrets(), &graph(), post(body.to_owned())).await;
    if answered.status != 200 {
        answered.assert_problem(401, "invalid-signature");
    }
    let at_once = graph().verify(&secrets(), post("").headers(), body.as_bytes());
    assert_eq!(
        at_once.is_ok(),
        answered.status == 200,
        "{body}: {at_once:?}"
    );
    answered.status.as_u16()
}

#[tokio::test]
async fn each_item_has_a_token() {
    let (old, new) = (item("\"old\""), item("\"new\""));
    let many = vec![old.clone(); 2_000].join(",");
    for items in [&old, &new, &format!("{old},{new}"), &many] {
        assert_eq!(
            status(&format!(r#"{{"value":[{items}]}}"#)).await,
            200,
            "{items}"
        );
    }
    let others: Vec<_> = (0..9).map(|it| item(&format!("\"{it}\""))).collect();
    for items in [
        "",
        &item("\"other\""),
        &format!("{old},{}", item("\"other\"")),
        &format!("{},{old}", item("\"other\"")),
        &format!(r#"{old},{{"changeType":"created"}}"#),
        &format!("{old},{{}}"),
        &format!("{old},null"),
        &format!("{old},[{old}]"),
        &format!("{old},{}", item("null")),
        &format!("{old},{}", item("7")),
        &format!("{old},{}", item("[\"old\"]")),
        &format!("{old},{}", item("{}")),
        &format!("{old},{}", item("\"old\",\"clientState\":\"old\"")),
        &format!("{old},{}", item("\"\"")),
        &format!("{old},{}", others.join(",")),
    ] {
        assert_eq!(
            status(&format!(r#"{{"value":[{items}]}}"#)).await,
            401,
            "{items}"
        );
    }
    for body in [
        "",
        "{}",
        "[]",
        &format!("[{old}]"),
        &old,
        &format!(r#"{{"value":{old}}}"#),
        &format!(r#"{{"value":[{old}],"value":[{old}]}}"#),
        &format!(r#"{{"value":[{old}],"value":[]}}"#),
        &format!(r#"{{"value":[{old}]}} {{}}"#),
        &format!(r#"{{"value":[{old}"#),
    ] {
        assert_eq!(status(body).await, 401, "{body}");
    }
}

#[test]
fn a_place_of_tokens_that_is_wrong_is_refused() {
    for (place, reason) in [
        ("/a/*/b/*/c", "has a second `*`"),
        ("/a/*/b/*", "has a second `*`"),
        ("/a~/*/b", "has a `~` in a name"),
        ("/*/b", "is no JSON pointer"),
    ] {
        let signature = json!({"headers": [place], "algorithm": "token"});
        let error = described(json!({"signature": signature})).unwrap_err();
        assert!(error.contains(reason), "{place}: {error}");
    }
    let signature = json!({"headers": ["/a/*/b"], "algorithm": "hmac-sha256", "coding": "hex"});
    let error = described(json!({"signature": signature})).unwrap_err();
    assert!(error.contains("only a token may stand there"), "{error}");
}

const ASKED: &str = "/?validationToken=Validation%3a+Testing+client+application+Request-Id%3a+522a";

fn ask(target: &str, length: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let request = Request::post(target).header("content-type", "text/plain");
    let request = length
        .into_iter()
        .fold(request, |it, length| it.header("content-length", length));
    request.body(Full::from(body.to_owned())).unwrap()
}

#[tokio::test]
async fn an_empty_post_with_the_parameter_is_answered() {
    for (sender, secrets) in [(graph(), secrets()), (unproved(), secrets())] {
        let answered = receive(secrets, &sender, ask(ASKED, Some("0"), "")).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        assert_eq!(
            answered.body,
            "Validation: Testing client application Request-Id: 522a"
        );
        assert_eq!(answered.header("content-type"), Some("text/plain"));
        assert_eq!(answered.header("x-content-type-options"), Some("nosniff"));
    }
    let long = format!("/?validationToken={}", "a+".repeat(300));
    for target in [
        "/?validationToken=",
        "/?validationToken=+a",
        "/?validationToken=a+",
        "/?validationToken=a++b",
        "/?validationToken=a%0ab",
        "/?validationToken=a%09b",
        "/?validationToken=%c3%bc",
        "/?validationToken=a&validationToken=a",
        &long,
    ] {
        receive(secrets(), &graph(), ask(target, Some("0"), ""))
            .await
            .assert_problem(403, "invalid-challenge");
    }
    for target in ["/", "/?validationtoken=a"] {
        receive(secrets(), &graph(), ask(target, Some("0"), ""))
            .await
            .assert_problem(401, "invalid-signature");
    }
}

/// The same challenge of a sender whose signature stands in a header.
fn unproved() -> Sender {
    described(json!({"challenge": [{
        "method": "POST", "when": {"?validationToken": true}, "proof": "none", "answer": {"raw": "?validationToken"},
    }]}))
    .unwrap()
}

/// Whoever adds the parameter to a delivery neither passes it off as a challenge nor as proved.
#[tokio::test]
async fn a_post_with_an_event_is_no_challenge() {
    let forged = format!(r#"{{"value":[{}]}}"#, item("\"other\""));
    let proved = format!(r#"{{"value":[{}]}}"#, item("\"old\""));
    for length in [None, Some(forged.len().to_string())] {
        for sender in [graph(), unproved()] {
            let mut request = ask(ASKED, length.as_deref(), &forged);
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert("content-type", json);
            receive(secrets(), &sender, request)
                .await
                .assert_problem(401, "invalid-signature");
        }
    }
    // With its token, it is an event.
    let mut request = ask(ASKED, None, &proved);
    request
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/json"));
    let answered = receive(secrets(), &graph(), request).await;
    assert_eq!(
        (answered.status.as_u16(), &answered.body[..]),
        (200, &br#"["microsoft-graph",null]"#[..])
    );
    // No server passes on a body after this length, and it is not read.
    let answered = receive(secrets(), &graph(), ask(ASKED, Some("0"), &proved)).await;
    assert_eq!(answered.header("content-type"), Some("text/plain"));
    // Twice the length, or another one.
    for lengths in [&["0", "0"][..], &["+0"], &["00"], &["1"]] {
        let mut request = ask(ASKED, None, "");
        for length in lengths {
            request
                .headers_mut()
                .append("content-length", HeaderValue::from_static(length));
        }
        let answered = receive(secrets(), &graph(), request).await;
        assert!(
            matches!(answered.status.as_u16(), 400 | 401),
            "{lengths:?}: {answered:?}"
        );
    }
}
