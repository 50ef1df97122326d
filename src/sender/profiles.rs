//! The senders that are known by name: a description of each, in the form that an operator writes. Those that have
//! constructors are a file each, and all others a line of `profiles/others.jsonl`.

use super::Sender;
use super::description::Description;
use crate::config::ConfigError;

macro_rules! profiles {
    (
        $($(#[$doc:meta])* $name:ident $(($url:ident))? = $file:literal $(if $feature:tt)?;)*
        @others $($other:literal $(if $feature_of_other:tt)?;)*
    ) => {
        impl Sender {$(
            $(#[$doc])*
            $(#[cfg(feature = $feature)])?
            #[must_use]
            pub fn $name($($url: impl Into<String>)?) -> Self {
                #[allow(unused_mut, unused_assignments, reason = "only some profiles have a URL")]
                let mut url = None::<String>;
                $(url = Some($url.into());)?
                known($file, url.as_deref())
            }
        )*

            /// The names of the profiles, which [`named`](Self::named) takes.
            pub const PROFILES: &[&str] = &[
                $($(#[cfg(feature = $feature)])? $file,)*
                $($(#[cfg(feature = $feature_of_other)])? $other,)*
            ];

            /// Returns the description of a profile in JSON: begin with it when you
            /// [write your own](crate::docs::senders#another-sender).
            #[must_use]
            pub fn profile(name: &str) -> Option<&'static str> {
                match name {
                    // Also without its feature: the error then names the feature, and not an unknown profile.
                    $($file => Some(include_str!(concat!("profiles/", $file, ".json"))),)*
                    name => other(name),
                }
            }
        }
    };
}

/// The description of a profile without a file of its own.
fn other(name: &str) -> Option<&'static str> {
    let mut lines = include_str!("profiles/others.jsonl").lines();
    let begin = format!("{{\"name\": \"{name}\",");
    lines.find(|line| line.starts_with(&begin))
}

profiles! {
    /// The chat platform, which [`event`](crate::event) has the types of.
    chat_platform = "chat-platform";
    /// [Standard Webhooks](https://www.standardwebhooks.com), which many senders follow. Give the route their
    /// [name](crate::Webhooks::name).
    standard_webhooks = "standard-webhooks";
    /// [Standard Webhooks](https://www.standardwebhooks.com) that are signed with a private key of Ed25519. Give the
    /// route the sender's [name](crate::Webhooks::name).
    standard_webhooks_v1a = "standard-webhooks-v1a" if "public-keys";
    /// Svix, with the headers `svix-*` or `webhook-*`.
    svix = "svix";
    /// `OpenAI`.
    openai = "openai";
    /// GitHub, with the content type `application/json`.
    github = "github";
    /// Stripe.
    stripe = "stripe";
    /// Slack's Events API.
    slack = "slack";
    /// Shopify.
    shopify = "shopify";
    /// Square, which signs the URL as it is configured there.
    square(url) = "square";
    /// HubSpot, with signatures of version 3, which sign the URL as it is configured there. Its events come in
    /// [batches](crate::docs::senders#batches).
    hubspot_v3(url) = "hubspot-v3";
    /// Paddle Billing.
    paddle = "paddle";
    /// Linear.
    linear = "linear";
    /// Box, with webhooks of version 2.
    box_com = "box";
    /// Zoom.
    zoom = "zoom";
    /// LINE's Messaging API. Its events come in [batches](crate::docs::senders#batches).
    line = "line";
    /// Webflow.
    webflow = "webflow";
    /// Twitch's `EventSub`.
    twitch = "twitch";
    /// Meta: WhatsApp, Messenger, Instagram and pages. Its events come in [batches](crate::docs::senders#batches). It
    /// needs a [token of its challenges](Self::with_challenge_token).
    meta = "meta";
    /// GitLab, with a secret token.
    gitlab = "gitlab";
    /// GitLab, with a signing token, as Standard Webhooks.
    gitlab_signed = "gitlab-signed";
    /// Bitbucket Cloud.
    bitbucket = "bitbucket";
    /// Jira Cloud, with webhooks of an administrator.
    jira = "jira";
    /// Telegram's Bot API.
    telegram = "telegram";
    /// Discord's interactions, with the public key of the application.
    discord = "discord" if "public-keys";
    /// SendGrid's event webhook, with its verification key. Its events come in [batches](crate::docs::senders#batches).
    sendgrid = "sendgrid" if "public-keys";

    @others
    "airtable";
    "airwallex";
    "alertmanager";
    "anthropic";
    "asana";
    "calcom";
    "calendly";
    "chargebee";
    "checkout";
    "circle" if "public-keys";
    "circleci";
    "coinbase-commerce";
    "courier";
    "customerio";
    "discord-events" if "public-keys";
    "docusign";
    "dropbox";
    "elevenlabs";
    "enode";
    "fastspring";
    "figma";
    "gitea";
    "github-secret-scanning" if "public-keys";
    "gocardless";
    "grafana";
    "grafana-timestamp";
    "huggingface";
    "intercom";
    "intuit";
    "knock";
    "lemon-squeezy";
    "linkedin";
    "lithic";
    "microsoft-graph";
    "mux";
    "notion";
    "nylas";
    "okta";
    "orb";
    "pagerduty";
    "paystack";
    "persona";
    "polar";
    "postmark";
    "pusher";
    "pylon";
    "razorpay";
    "recharge";
    "retell";
    "revolut";
    "sanity";
    "segment";
    "sentry";
    "slack-commands";
    "slack-interactivity";
    "smartcar";
    "tally";
    "telnyx" if "public-keys";
    "tiktok";
    "trello";
    "twitter";
    "typeform";
    "vercel";
    "wise" if "public-keys";
    "woocommerce";
    "workos";
    "xero";
    "zendesk";
    "zerohash";
}

impl Sender {
    /// Returns a profile by its name, as an operator writes it. The URL is that of a sender that signs it.
    ///
    /// ```
    /// # fn main() -> Result<(), tower_webhook::ConfigError> {
    /// use tower_webhook::Sender;
    ///
    /// assert_eq!(Sender::named("stripe", None)?.name(), "stripe");
    /// assert!(Sender::named("square", None).is_err()); // It signs the URL.
    /// assert!(Sender::named("square", Some("https://example.com/square")).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConfigError::Sender`] when there is no profile of this name, or its URL is missing.
    pub fn named(name: &str, url: Option<&str>) -> Result<Self, ConfigError> {
        let wrong = |reason| ConfigError::Sender {
            name: name.to_owned(),
            reason,
        };
        let file = Self::profile(name).ok_or_else(|| {
            let known = Self::PROFILES.join(", ");
            wrong(match name {
                "twilio" | "mailgun" => {
                    "no description says how it signs: in a program of yours, `Webhooks::verified_by` takes a verifier, such as \
                     `signature::Twilio` or `signature::Mailgun`"
                        .to_owned()
                }
                _ => format!("there is no such profile: use one of {known}"),
            })
        })?;
        let description: Result<Description, _> = serde_json::from_str(file);
        let mut description = description.map_err(|error| wrong(error.to_string()))?;
        // A profile has no URL in its file, because each user has another one.
        description.url = url.map(str::to_owned).or(description.url);
        description.sender().map_err(wrong)
    }
}

#[allow(clippy::expect_used, reason = "a test reads all of them")]
fn known(name: &str, url: Option<&str>) -> Sender {
    Sender::named(name, url).expect("a description without mistakes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_others_has_a_name() {
        let lines = include_str!("profiles/others.jsonl").lines();
        let mut before = String::new();
        for line in lines {
            let description: serde_json::Value = serde_json::from_str(line).unwrap();
            let name = description["name"].as_str().unwrap();
            assert_eq!(Sender::profile(name), Some(line));
            assert!(*before < *name, "{name} is not in its place");
            before = name.to_owned();
            let needs_keys = Sender::from_json(line).is_err() && cfg!(not(feature = "public-keys"));
            assert!(
                needs_keys
                    || description.to_string().contains("{url}")
                    || Sender::PROFILES.contains(&name),
                "{name}"
            );
        }
    }
}
