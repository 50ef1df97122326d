//! The senders that are known by name: a description of each, in the form that an operator writes.

use super::Sender;
use super::description::Description;

macro_rules! profiles {
    ($($(#[$doc:meta])* $name:ident $(($url:ident))? = $file:literal;)*) => {
        impl Sender {$(
            $(#[$doc])*
            #[must_use]
            pub fn $name($($url: impl Into<String>)?) -> Self {
                #[allow(unused_mut, unused_assignments, reason = "only some profiles have a URL")]
                let mut url = None::<String>;
                $(url = Some($url.into());)?
                known(include_str!(concat!("profiles/", $file, ".json")), url)
            }
        )*}
    };
}

profiles! {
    /// [Standard Webhooks](https://www.standardwebhooks.com), which many senders follow. Give it their name in a
    /// [namespace](crate::Webhooks::namespace).
    standard_webhooks = "standard-webhooks";
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
    /// Paddle Billing.
    paddle = "paddle";
    /// `HubSpot`, with signatures of version 3, which sign the URL as it is configured there.
    hubspot_v3(url) = "hubspot-v3";
    /// Linear.
    linear = "linear";
    /// Box, with webhooks of version 2.
    box_com = "box";
    /// Zoom.
    zoom = "zoom";
    /// LINE's Messaging API.
    line = "line";
    /// Webflow.
    webflow = "webflow";
}

#[allow(clippy::expect_used, reason = "a test reads all of them")]
fn known(file: &str, url: Option<String>) -> Sender {
    let mut description: Description = serde_json::from_str(file).expect("a description");
    description.url = url.or(description.url);
    description
        .sender()
        .expect("a description without mistakes")
}
