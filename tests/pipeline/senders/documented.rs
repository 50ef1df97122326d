//! Examples that makers document, of senders without a library that verifies, in one direction; and the vectors that
//! projects have published.

use std::collections::BTreeMap;

use super::*;

/// Profile, secret, headers, and the body. What was verified, or none if the body is no event.
type Example = (
    Sender,
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
    Option<&'static str>,
);

const ATLASSIAN: &str = "sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9";
const SECRET: &str = "It's a Secret to Everybody";

#[rustfmt::skip]
fn examples() -> [Example; 6] {
    let push = r#"{"object_kind":"push","event_name":"push"}"#;
    let member = r#"{"event_name":"user_add_to_group"}"#;
    let update = r#"{"update_id":10000,"message":{"message_id":1365,"text":"/start"}}"#;
    [
        // docs.github.com: validating webhook deliveries.
        (Sender::github(), SECRET, &[
            ("x-hub-signature-256", "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
            ("x-github-event", "push"), ("x-github-delivery", "72d3162e"),
        ], "Hello, World!", Some(r#"["push","72d3162e"]"#)),
        // support.atlassian.com: manage webhooks of Bitbucket Cloud.
        (Sender::bitbucket(), SECRET, &[
            ("x-hub-signature", ATLASSIAN), ("x-event-key", "repo:push"), ("x-request-uuid", "1"),
        ], "Hello World!", Some(r#"["repo:push","1"]"#)),
        // developer.atlassian.com: webhooks of Jira. The example's body is no event.
        (Sender::jira(), SECRET, &[
            ("x-hub-signature", ATLASSIAN), ("x-atlassian-webhook-identifier", "1"),
        ], "Hello World!", None),
        // docs.gitlab.com and core.telegram.org: the header is the token.
        (Sender::gitlab(), "a token", &[
            ("x-gitlab-token", "a token"), ("x-gitlab-event", "Push Hook"), ("idempotency-key", "f5e5f430"),
        ], push, Some(r#"["push","f5e5f430"]"#)),
        (Sender::gitlab(), "a token", &[
            ("x-gitlab-token", "a token"), ("x-gitlab-event", "Member Hook"),
        ], member, Some(r#"["user_add_to_group",null]"#)),
        (Sender::telegram(), "a-token_1", &[
            ("x-telegram-bot-api-secret-token", "a-token_1"),
        ], update, Some(r#"["telegram","10000"]"#)),
    ]
}

fn with_headers(headers: &[(&'static str, &'static str)], body: &str) -> Request<Full<Bytes>> {
    let own = headers.iter();
    own.fold(post(body.to_owned()), |request, (name, value)| {
        request.with(name, value)
    })
}

#[tokio::test]
async fn documented_deliveries_are_verified() {
    for (sender, secret, headers, body, event) in examples() {
        let secret = || Secret::new(secret).unwrap();
        let answered = receive(secret(), &sender, with_headers(headers, body)).await;
        match event {
            Some(event) => assert_eq!(answered.body, event, "{sender:?}"),
            None => answered.assert_problem(400, "unreadable-event"),
        }
        let stranger = Secret::new("another").unwrap();
        receive(stranger, &sender, with_headers(headers, body))
            .await
            .assert_problem(401, "invalid-signature");
        for left_out in headers
            .iter()
            .filter(|(name, _)| name.ends_with("signature") || name.ends_with("token"))
        {
            let rest: Vec<_> = headers
                .iter()
                .filter(|it| *it != left_out)
                .copied()
                .collect();
            receive(secret(), &sender, with_headers(&rest, body))
                .await
                .assert_problem(401, "invalid-signature");
        }
        if !headers.iter().any(|(name, _)| name.ends_with("token")) {
            receive(
                secret(),
                &sender,
                with_headers(headers, &format!("{body} ")),
            )
            .await
            .assert_problem(401, "invalid-signature");
        }
    }
}

/// Atlassian's header has the name of another sender's, with another hash.
#[tokio::test]
async fn sha1_is_not_taken_for_sha256() {
    let tag = "sha1=0123456789abcdef0123456789abcdef01234567";
    for sender in [Sender::bitbucket(), Sender::jira()] {
        let request = post("{}").with("x-hub-signature", tag);
        receive(Secret::new(SECRET).unwrap(), &sender, request)
            .await
            .assert_problem(401, "invalid-signature");
    }
}

/// What a project has published: in `fixtures/senders/published.json`, each with its source.
#[derive(Deserialize)]
struct Vector {
    source: String,
    sender: String,
    secret: String,
    now: u64,
    headers: BTreeMap<String, String>,
    body: String,
    accepted: bool,
}

fn vectors() -> Vec<(Sender, Secret, Vector)> {
    let text = include_str!("../../fixtures/senders/published.json");
    let mut vectors: Vec<Vector> = serde_json::from_str(text).unwrap();
    vectors.retain(|it| Sender::PROFILES.contains(&&*it.sender));
    let read = |vector: Vector| {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(vector.now);
        let sender = Sender::named(&vector.sender, None).unwrap();
        let secret = Secret::new(vector.secret.as_str()).unwrap();
        (sender.with_clock(move || now), secret, vector)
    };
    vectors.into_iter().map(read).collect()
}

#[tokio::test]
async fn published_vectors_are_verified() {
    let mut counts = BTreeMap::new();
    for (sender, secret, vector) in vectors() {
        let case = Case {
            name: vector.source,
            headers: vector.headers,
            body: vector.body,
            accepted: vector.accepted,
        };
        let answered = receive(secret, &sender, request(&case).unwrap()).await;
        // An authentic body may have no event type, or be a form.
        match case.accepted {
            true => assert_ne!(answered.status, 401, "{}", case.name),
            false => answered.assert_problem(401, "invalid-signature"),
        }
        counts.entry(vector.sender).or_insert([0, 0])[usize::from(case.accepted)] += 1;
    }
    let of_keys = counts.remove("github-secret-scanning");
    assert_eq!(of_keys, cfg!(feature = "public-keys").then_some([0, 1]));
    let counts: Vec<_> = counts
        .iter()
        .map(|(name, it)| (name.as_str(), *it))
        .collect();
    assert_eq!(
        counts,
        [
            ("circleci", [1, 4]),
            ("github", [2, 3]),
            ("line", [1, 1]),
            ("revolut", [0, 1]),
            ("slack", [1, 1]),
            ("slack-commands", [1, 1]),
            ("standard-webhooks", [12, 3]),
            ("svix", [11, 4]),
        ]
    );
}

#[test]
fn published_vectors_are_signed() {
    // A public key signs nothing, and the time of the other one has milliseconds.
    let is_signed =
        |it: &Vector| it.accepted && !["github-secret-scanning", "revolut"].contains(&&*it.sender);
    for (sender, secret, vector) in vectors().into_iter().filter(|it| is_signed(&it.2)) {
        let key = vector
            .headers
            .get("webhook-id")
            .or(vector.headers.get("svix-id"));
        let key = key.and_then(|key| IdempotencyKey::new(key.parse().unwrap()));
        let delivery = RawDelivery::new(EventKind::from_static("push"), vector.body).with_key(key);
        let signed = sender.sign(&secret, &delivery).unwrap();
        let mut tags = signed
            .iter()
            .filter(|(name, _)| name.as_str().contains("signature"));
        let (_, tag) = tags.next().unwrap();
        let mut published = vector.headers.iter();
        let published = published.find(|(name, _)| name.contains("signature"));
        // One of several, perhaps, and of another family.
        let (_, published) = published.unwrap();
        assert!(
            published.contains(tag.to_str().unwrap()),
            "{}",
            vector.source
        );
    }
}
