//! Senders without a constructor are verified as the libraries verify them that `tests/senders/record/makers.mjs` asks.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// What this crate refuses in addition to [`STRICTER`]: hex in upper case, names of elements that are ignored or in
/// another case, and times ahead, of which the library in npm knows no limit, but the one in PyPI does.
const REFUSED: [(&str, &str); 5] = [
    ("gocardless", "a tag in upper case"),
    ("retell", "a tag in upper case"),
    ("retell", "another prefix"),
    ("workos", "another prefix"),
    ("workos", "as far ahead as it may be"),
];

/// What this crate accepts in addition: tags stand in a list that is split at spaces, or in a list of which these
/// libraries read one element alone.
const ACCEPTED: [(&str, &str); 12] = [
    ("anthropic", "a space after the tag"),
    ("gitlab-signed", "a space after the tag"),
    ("lithic", "a space after the tag"),
    ("orb", "a space after the tag"),
    ("polar", "a space after the tag"),
    ("polar-text", "a space after the tag"),
    ("elevenlabs", "a wrong tag before the right one"),
    ("retell", "a wrong tag before the right one"),
    ("retell", "a wrong tag after the right one"),
    ("sanity", "a wrong tag before the right one"),
    ("sanity", "a wrong tag after the right one"),
    ("workos", "a wrong tag before the right one"),
];

/// Recordings, each with the clock of its own.
fn all() -> Vec<(String, Recorded, Sender)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/senders");
    let files = fs::read_dir(directory).unwrap();
    let stems = files.map(|it| {
        it.unwrap()
            .path()
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    });
    let stems: BTreeSet<_> = stems.collect();
    let read = |file: String| {
        let name = file.strip_suffix("-text").unwrap_or(&file);
        let is_known = Sender::PROFILES.contains(&name);
        let recorded = is_known.then(|| Recorded::of(&file))?;
        let profile = |url: &str| {
            let sender = Sender::named(name, None).or_else(|_| Sender::named(name, Some(url)));
            sender.unwrap()
        };
        let sender = recorded.sender(profile);
        Some((file, recorded, sender))
    };
    stems.into_iter().filter_map(read).collect()
}

/// Those without a constructor.
fn others() -> Vec<(String, Recorded, Sender)> {
    let is_other = |name: &str| {
        !Sender::profile(name).unwrap().trim().contains('\n')
            || ["gitlab-signed", "telegram"].contains(&name)
    };
    let mut all = all();
    all.retain(|(_, _, sender)| is_other(sender.name()));
    all
}

fn is_token(sender: &Sender) -> bool {
    let described: Value = serde_json::from_str(Sender::profile(sender.name()).unwrap()).unwrap();
    described["signature"]["algorithm"] == "token"
}

/// A body is not proved by a token.
fn is_of_body(case: &Case) -> bool {
    case.name.contains("body")
}

#[tokio::test]
async fn deliveries_are_verified_as_libraries_do() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (file, recorded, sender) in others() {
        let secret = Secret::new(recorded.secret.as_str()).unwrap();
        let is_token = is_token(&sender);
        for case in &recorded.cases {
            let Some(request) = request(case) else {
                continue;
            };
            let answered = receive(secret.clone(), &sender, request).await;
            count += 1;
            // An authentic body may be no JSON.
            let accepted = answered.status == 200 || answered.status == 400;
            if answered.status == 200 {
                let (kind, key): Event = serde_json::from_slice(&answered.body).unwrap();
                assert_eq!(
                    (kind, key),
                    (recorded.r#type.clone(), recorded.key.clone()),
                    "{file}"
                );
            }
            let genuine = &recorded.cases[0];
            let is_genuine = (&case.headers, &case.body) == (&genuine.headers, &genuine.body);
            let is_mistake = case.name.starts_with("time ") || STRICTER.contains(&&*case.name);
            let is_in = |list: &[(&str, &str)]| list.contains(&(&*file, &*case.name));
            let expected = is_genuine
                || is_token && is_of_body(case)
                || case.accepted && !is_mistake && !is_in(&REFUSED)
                || is_in(&ACCEPTED);
            if accepted != expected {
                let is = if accepted { "accepted" } else { "refused" };
                let text = String::from_utf8_lossy(&answered.body);
                wrong.push(format!("{file}: `{}` is {is}: {text}", case.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 0, "{count}");
}

#[test]
fn deliveries_are_signed_as_libraries_do() {
    for (file, recorded, sender) in others() {
        if is_token(&sender) || file == "polar" {
            continue;
        }
        let secret = Secret::new(private(&recorded)).unwrap();
        let kind: EventKind = recorded.r#type.parse().unwrap();
        let key = recorded.key.as_deref().map(|key| key.parse().unwrap());
        for case in &recorded.cases[..2] {
            let delivery = RawDelivery::new(kind.clone(), case.body.clone())
                .with_key(key.clone().and_then(IdempotencyKey::new));
            for (header, value) in &sender.sign(&secret, &delivery).unwrap() {
                let expected = headers(case).unwrap().remove(header).unwrap();
                // WorkOS writes a blank after the comma.
                let expected = expected.to_str().unwrap().replace(", ", ",");
                assert_eq!(value, &expected, "{file}: {header}");
            }
        }
    }
}

#[tokio::test]
async fn challenges_are_answered_as_libraries_do() {
    for file in ["smartcar", "twitter"] {
        let recorded = Recorded::of(file);
        let sender = recorded.sender(|_| Sender::named(file, None).unwrap());
        let secret = Secret::new(recorded.secret.as_str()).unwrap();
        let body = r#"{"eventId":"1","eventType":"VERIFY","data":{"challenge":"a-challenge"}}"#;
        let request = match file {
            "smartcar" => signed(&sender, &secret, body),
            _ => Request::get("/?crc_token=a-token")
                .body(Full::default())
                .unwrap(),
        };
        let answered = receive(secret, &sender, request).await;
        assert_eq!(answered.status, 200, "{file}: {answered:?}");
        let answer: Value = serde_json::from_slice(&answered.body).unwrap();
        assert_eq!(Some(answer), recorded.challenge, "{file}");
    }
}

fn private(recorded: &Recorded) -> &str {
    #[cfg(feature = "public-keys")]
    if let Some(private) = &recorded.private {
        return private;
    }
    &recorded.secret
}

#[test]
fn judges_of_profiles_are_those_of_recordings() {
    let mut judges = BTreeMap::new();
    for (_, recorded, sender) in all() {
        let judge = match recorded.maker.rsplit_once(' ') {
            _ if recorded.maker.starts_with("none") => "published vectors".to_owned(),
            Some((library, version)) => format!("{library}@{version}"),
            None => panic!("{}", recorded.maker),
        };
        judges.insert(sender.name().to_owned(), judge);
    }
    for name in Sender::PROFILES {
        let sender = Sender::named(name, None).or_else(|_| Sender::named(name, Some(URL)));
        let sender = sender.unwrap();
        assert_eq!(
            sender.judge().is_none(),
            sender.is_as_documented(),
            "{name}"
        );
        match (sender.judge(), judges.get(*name)) {
            (Some("published vectors") | None, None) => {}
            (judge, recorded) => assert_eq!(judge, recorded.map(String::as_str), "{name}"),
        }
    }
}
