//! A refused request is tried with the secrets of the other routes: at most one a second, and the answer stays the same.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body_util::channel::Channel;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use support::SECOND;
use support::delivery::{Answered, RequestExt, assert_tells_no_secret, send};
use support::lock;
use support::log::Log;
use tokio::time::{advance, sleep};
use tower::{BoxError, Layer, service_fn};
use tower_webhook::signature::{
    Neighbours, Signature, SignatureError, Verdict, Verifier, VerifierError,
};
use tower_webhook::telemetry::{Observation, Observer};
use tower_webhook::{
    EventKind, IdempotencyKey, RawDelivery, RouteName, Secret, Secrets, Sender, SenderPolicy,
    Webhooks,
};
use tracing::Level;

/// The secret that would have matched each refused request.
#[derive(Clone, Default)]
struct Found(Arc<Mutex<Vec<Option<String>>>>);

impl Found {
    fn take(&self) -> Vec<Option<String>> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Observer for Found {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Delivery(ended) = observation
            && ended.outcome != "handled"
        {
            lock(&self.0).push(ended.would_match().map(str::to_owned));
        }
    }
}

type Body = UnsyncBoxBody<Bytes, BoxError>;

fn secret(text: &str) -> Secret {
    Secret::new(text).unwrap()
}

/// A delivery as a sender signs it with a secret.
fn delivery(sender: &Sender, text: &str) -> Request<Body> {
    signed(sender, text, r#"{"id":"key-1","type":"push"}"#)
}

fn signed(sender: &Sender, text: &str, body: impl Into<Bytes>) -> Request<Body> {
    let key = IdempotencyKey::new("key-1".parse().unwrap());
    let delivery = RawDelivery::new(EventKind::from_static("push"), body).with_key(key);
    let headers = sender.sign(&secret(text), &delivery).unwrap();
    let body = Full::new(delivery.body().clone()).map_err(|it| match it {});
    let mut request = Request::post("/").body(body.boxed_unsync()).unwrap();
    *request.headers_mut() = headers;
    request
}

macro_rules! handled {
    ($layer:expr) => {
        $layer.layer(service_fn(async |_: Request<tower_webhook::Verified>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(Full::<Bytes>::default()))
        }))
    };
}

fn webhooks(sender: &Sender, secrets: impl Into<Secrets>, found: &Found) -> Webhooks {
    Webhooks::new(secrets)
        .sender(sender.clone())
        .observer(found.clone())
}

/// The routes `github`, with two secrets of which one has a label, and `stripe`, with one.
macro_rules! two_routes {
    ($found:expr) => {{
        let all = Neighbours::default();
        let of_github =
            Secrets::new([secret("old"), secret("new").with_label("since May")]).unwrap();
        let github = webhooks(&Sender::github(), of_github, $found).neighbours(&all);
        let stripe = webhooks(&Sender::stripe(), secret("pay"), $found).neighbours(&all);
        let github = handled!(github.into_signature_layer().unwrap());
        let stripe = handled!(stripe.into_signature_layer().unwrap());
        (github, stripe)
    }};
}

fn unauthorized(answered: &Answered) {
    answered.assert_problem(401, "invalid-signature");
}

#[tokio::test(start_paused = true)]
async fn the_secret_of_another_route_is_named() {
    let log = Log::capture(Level::WARN);
    let found = Found::default();
    let (github, stripe) = two_routes!(&found);
    let (of_github, of_stripe) = (Sender::github(), Sender::stripe());
    let stale = of_stripe
        .clone()
        .with_clock(|| std::time::SystemTime::now() - 3_600 * SECOND);
    let mut forged = delivery(&of_github, "old");
    forged.headers_mut().remove("x-hub-signature-256");
    let large = format!(r#"{{"type":"{}"}}"#, "x".repeat(64 * 1024));
    let alone = webhooks(&of_github, secret("old"), &Found::default());
    let alone = handled!(alone.into_signature_layer().unwrap());
    let expected = send(&alone, delivery(&of_github, "pay")).await;
    for (at, request, would_match) in [
        // The other URL at the sender: the signature header is missing.
        (
            "stripe",
            delivery(&of_github, "old"),
            Some("the secret 0 of the route github"),
        ),
        (
            "stripe",
            delivery(&of_github, "new"),
            Some("the secret since May of the route github"),
        ),
        (
            "github",
            delivery(&of_stripe, "pay"),
            Some("the secret of the route stripe"),
        ),
        // The other secret at the sender.
        (
            "github",
            delivery(&of_github, "pay"),
            Some("the secret of the route stripe"),
        ),
        (
            "stripe",
            delivery(&of_stripe, "old"),
            Some("the secret 0 of the route github"),
        ),
        ("github", delivery(&of_github, "unknown"), None),
        ("stripe", delivery(&of_github, "unknown"), None),
        ("github", forged, None),
        // Its secret is right, and its time is not.
        ("stripe", delivery(&stale, "old"), None),
        ("github", signed(&of_github, "pay", large.clone()), None),
        ("stripe", signed(&of_github, "old", large), None),
    ] {
        log.clear();
        let answered = match at {
            "github" => send(&github, request).await,
            _ => send(&stripe, request).await,
        };
        assert_eq!(
            (answered.status, &answered.headers, &answered.body),
            (expected.status, &expected.headers, &expected.body)
        );
        let would_match = would_match.map(str::to_owned);
        assert_eq!(found.take(), std::slice::from_ref(&would_match));
        let [event] = &log.events()[..] else {
            panic!("{:?}", log.events());
        };
        assert_eq!(event.get("would_match"), would_match.as_ref());
        assert!(!format!("{event:?}").contains("pay"), "{event:?}");
        assert_tells_no_secret(&format!("{event:?}"));
        advance(SECOND).await;
    }
    // Both routes still receive what is theirs.
    assert_eq!(send(&github, delivery(&of_github, "new")).await.status, 200);
    assert_eq!(send(&stripe, delivery(&of_stripe, "pay")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn at_most_one_request_a_second_is_tried() {
    let found = Found::default();
    let (github, stripe) = two_routes!(&found);
    let (of_github, of_stripe) = (Sender::github(), Sender::stripe());
    let pay = Some("the secret of the route stripe".to_owned());
    let old = Some("the secret 0 of the route github".to_owned());
    for _ in 0..3 {
        // A flood that no secret matches takes the try of its second, at whichever route it is.
        unauthorized(&send(&github, delivery(&of_github, "unknown")).await);
        for _ in 0..5 {
            unauthorized(&send(&github, delivery(&of_github, "pay")).await);
            unauthorized(&send(&stripe, delivery(&of_github, "old")).await);
        }
        assert_eq!(found.take(), vec![None; 11]);
        advance(SECOND).await;
        unauthorized(&send(&stripe, delivery(&of_github, "old")).await);
        unauthorized(&send(&github, delivery(&of_stripe, "pay")).await);
        advance(SECOND - SECOND / 1_000).await;
        unauthorized(&send(&github, delivery(&of_stripe, "pay")).await);
        advance(SECOND / 1_000).await;
        unauthorized(&send(&github, delivery(&of_stripe, "pay")).await);
        assert_eq!(found.take(), [old.clone(), None, None, pay.clone()]);
        advance(SECOND).await;
    }
    // What cannot be a delivery of another route takes no try.
    for _ in 0..5 {
        let bare = Request::post("/").body(Full::<Bytes>::default()).unwrap();
        unauthorized(&send(&github, bare).await);
    }
    unauthorized(&send(&github, delivery(&of_stripe, "pay")).await);
    assert_eq!(found.take().last(), Some(&pay));
}

/// A request that its head refuses is refused like that, whatever becomes of the body that is received to try it.
#[tokio::test(start_paused = true)]
async fn the_body_does_not_change_the_answer() {
    let found = Found::default();
    let (github, _stripe) = two_routes!(&found);
    let request = || delivery(&Sender::stripe(), "pay");
    let declared = |length: usize| request().with("content-length", length.to_string());
    // It breaks off, lies about its length, never ends, or is none.
    let (mut sender, broken) = Channel::<Bytes, BoxError>::new(1);
    let sends = async move {
        sender.send_data(Bytes::from_static(b"{")).await.unwrap();
        sender.abort("gone".into());
    };
    let broken = request().map(|_| broken.boxed_unsync());
    let (answered, ()) = tokio::join!(send(&github, broken), sends);
    unauthorized(&answered);
    let (_open, silent) = Channel::<Bytes, BoxError>::new(1);
    for request in [
        declared(5),
        declared(1_000_000),
        request().with("content-length", "x"),
        request().map(|_| silent.boxed_unsync()),
        request().map(|_| Full::default().map_err(|it| match it {}).boxed_unsync()),
    ] {
        sleep(SECOND).await;
        unauthorized(&send(&github, request).await);
    }
    assert_eq!(found.take(), vec![None; 6]);
    sleep(SECOND).await;
    unauthorized(&send(&github, request()).await);
    assert!(found.take()[0].is_some());
}

/// Secrets that were replaced, and routes that are gone, are not tried any more.
#[tokio::test(start_paused = true)]
async fn what_is_tried_follows_the_routes() {
    let found = Found::default();
    let (github, stripe) = two_routes!(&found);
    let tried = async |github: &_, text| {
        sleep(SECOND).await;
        unauthorized(&send(github, delivery(&Sender::stripe(), text)).await);
        found.take()[0].clone()
    };
    let name = Some("the secret of the route stripe".to_owned());
    assert_eq!(tried(&github, "pay").await, name);
    let next = stripe.with_sender(Sender::stripe(), secret("next"));
    let stripe: Signature<_> = next.unwrap();
    assert_eq!(tried(&github, "pay").await, None);
    assert_eq!(tried(&github, "next").await, name);
    drop(stripe);
    assert_eq!(tried(&github, "next").await, None);
}

/// A route with a verifier of its own has no secrets to try, and what it refuses is tried.
#[tokio::test(start_paused = true)]
async fn what_a_verifier_refuses_is_tried() {
    struct Refuses;

    #[async_trait::async_trait]
    impl Verifier for Refuses {
        fn name(&self) -> &str {
            "own"
        }

        fn policy(&self) -> SenderPolicy {
            SenderPolicy::default()
        }

        fn needs_replay_guard(&self) -> bool {
            false
        }

        async fn verify(&self, _: &Request<Bytes>) -> Result<Verdict, VerifierError> {
            Err(SignatureError::Wrong.into())
        }
    }

    let (all, found) = (Neighbours::default(), Found::default());
    let own = Webhooks::verified_by(Refuses).unwrap();
    let own = own.observer(found.clone()).neighbours(&all);
    let own = handled!(own.into_signature_layer().unwrap());
    let name: RouteName = "europe".parse().unwrap();
    let github = webhooks(&Sender::github(), secret("old"), &found);
    let github = github.name(name).neighbours(&all);
    let github = handled!(github.into_signature_layer().unwrap());
    unauthorized(&send(&own, delivery(&Sender::github(), "old")).await);
    let europe = "the secret of the route europe".to_owned();
    assert_eq!(found.take(), [Some(europe)]);
    advance(SECOND).await;
    unauthorized(&send(&github, delivery(&Sender::github(), "other")).await);
    assert_eq!(found.take(), [None]);
}
