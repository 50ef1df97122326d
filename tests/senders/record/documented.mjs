// Signs a delivery of each sender as its documentation says, with nothing but node:crypto: for senders whose library was not
// asked.
//
// Run with: node documented.mjs
//
// It writes ../../fixtures/senders/documented.json, which `tests/pipeline/senders/every.rs` reads.
import { createHmac, createPrivateKey, createPublicKey, sign } from "node:crypto";
import { writeFileSync } from "node:fs";

const NOW = 1790000000;
const SECONDS = String(NOW);
const MILLIS = `${NOW}000`;
const RFC3339 = "2026-09-21T14:13:20Z";
const SECRET = "8c1f5a0e9b2d4c6f8a1b3d5e7f901234";
const WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const URL_SET = "https://example.com/hooks?a=b";
const ID = "0f9a7c3e-5b1d";

const hmac = (content, coding = "hex", algorithm = "sha256", secret = SECRET) => createHmac(algorithm, secret).update(content).digest(coding);
const pkcs8 = (text) => createPrivateKey({ key: Buffer.from(text, "base64"), format: "der", type: "pkcs8" });
const spki = (key) => createPublicKey(key).export({ format: "der", type: "spki" });
const ED25519 = pkcs8("MC4CAQAwBQYDK2VwBCIEIIwfWg6bLUxvihs9Xn+QEjSMH1oOmy1Mb4obPV5/kBI0");
const P256 = pkcs8("MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr");
const RSA = pkcs8("MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQDK1A1URgqhL/JdzSpDLIJkl5CFtXgbk9QIauoQiJECh3Cy2RFcRBSBKYRBDQq4MLAnG8Gr4DS8ntvs6bDBSbPFqmRMmM0M4TBIM3CyH6YWi1TOD/zY2ODz8KBGj+e7XoQmULKyykYEaRq24HCyOfnRNY+y5tTORR9nosS3hLQyLAfo4T/3jxrWbrPzWD/9tYSXRe9NOOa2ZWoXCBWML5EI3NEurFkJaEQOlHTZYJlIKi+Vmp0PKUWJfOkaNUmj6RdIOUphioddHUBqh3ueh35jhKHPfbwdD8E2cztok61Vx6VSKMDzrF5cPz4OrTclGjXSvEojStlhMkqx5aMt0QxRAgMBAAECggEAARMv9uW1d2E6VvDta78NTzHWcZRNTKgd6ZAs1BBFOc7fSV4JJNoKLx0PNwu1+3/r5GkrP5lH7kVRQ7zWqPpBBP0q3D+7ESRoYxmSsVRQRwekrWrm8NHwGfAz3paIqIo5smefFX9+Riu1w95bT+Eqx8cRjzsrSY89jrO4Iy4wM6ExsZtKO2rq7MBL8bI9pwHE5kA00cDKDvDmCMT22CGCaV4WK1l7xglD1V0HZCmsEIxKuTVhILDKSTy/uSkEKYZyrnz7MRpapSEbJ2Zy5iPUwch7mGxFnqViNE0LRptyy5Nk9QpYOMmONHPJix8AhgDUo4oGeu3O0ckuf2LLrDyjoQKBgQDqqbwQAPGKH7KVgS1b0RGoTilJSTse80lv4AXTxwDIWt95Lb+nu26GuPDcyOL6EEKULrY07wFeSAsP+hILlHpoqd7jcxyxz0sQF6+j9jkG8Jr1i8FbXbHaf8A9IL5OUtmGrCJ6CKleXwQgP8XkDQuZQIVw1R0p5rw6eHFGFiS7TQKBgQDdRUydgc5y/Bl07liTp2pwqZY1hf/ifpiOXBuZ5lWxbjyUXY6BgUtm4gZLBl79ZdR9Tj+NaudOa+v7GLaoxz5gSxHqjfccMxo12MlfVLpljYPtcIwxZDdwhxmCOQzYHVLymMftJaXkd5YFjaRFFhOLGdUNq1M25w0xtcyFHVbrFQKBgQDaHt1s7sOVRPNlXkZAIyxLiiN8OHKYyUEImW4xNLf4g+dXJvwPt/v7hCp2vs+j6rtIK8c3mrVl4odN2X8uflvtr4A7YQNaD7nRAoNDX5oQZlNTTA11lLi9xaN17lqWSRJiyNvfHO/5hU47f6u815dhYwTmJWHPUebCXrPDls+bvQKBgFx/7OBndGujMe0s+oB3W0rPykiDxQ3lSFcy8CLtJGOxJsgLOFixOVlAIctZVXpvCF59yJmQ2DNzcEoe8bUq3cuZdlrskCIMxuc9wikFHYr4lu86vpCjSX3ULHjA6rqpv5RFBEcCFxCkYWXe6Y4sBW2AFg3J0lbATka6rk3zjvNlAoGAQ3TC/WgDdX3NTN22aGreX2Aj2fh5gn0svXDnCQMzV7j+3xrYo6r5b0Csq8t1yGj206/fgsz7jHiDUJTe20Fq+MOpLQ2ubHCG1ObQ+T911ixXS33l79iuUbC8ulUNJ1uQ25VD2Hwyl8lFiA6fF32eW2EN9nHf/TRzByJZHYIfxl4=");

// A body, its event type and key, the headers that stand for these, and the signature.
const deliveries = [];
const add = (name, body, type, key, headers, more = {}) => {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  deliveries.push({ name, secret: SECRET, ...more, now: NOW, type, key, headers: headers(text), body: text });
};
const joined = (...parts) => JSON.stringify(parts);
const webhook = (secretKey) => (body) => ({
  "webhook-id": ID,
  "webhook-timestamp": SECONDS,
  "webhook-signature": `v1,${hmac(`${ID}.${SECONDS}.${body}`, "base64", "sha256", secretKey)}`,
});
const KEY = Buffer.from(WHSEC.slice(6), "base64");
const pair = (header, written, name, content, coding = "hex") => (body) => ({ [header]: `t=${written},${name}=${hmac(content(written, body), coding)}` });
const dotted = (at, body) => `${at}.${body}`;

add("airtable", { base: { id: "app1" }, timestamp: "t" }, "airtable", null, (body) => ({ "x-airtable-content-mac": `hmac-sha256=${hmac(body, "hex", "sha256", Buffer.from("c2VjcmV0", "base64"))}` }), { secret: "c2VjcmV0" });
add("airwallex", { id: "evt_1", name: "payment_intent.succeeded" }, "payment_intent.succeeded", "evt_1", (body) => ({ "x-timestamp": MILLIS, "x-signature": hmac(MILLIS + body) }));
add("alertmanager", { status: "firing", groupKey: "{}" }, "firing", null, () => ({ authorization: `Bearer ${SECRET}` }));
add("anthropic", { type: "session.status_idled", id: "wevt_1" }, "session.status_idled", ID, webhook(KEY), { secret: WHSEC });
add("asana", { events: [{ action: "changed", created_at: RFC3339, resource: { gid: "1", resource_type: "task" } }] }, "asana", null, (body) => ({ "x-hook-signature": hmac(body) }));
add("calcom", { triggerEvent: "BOOKING_CREATED", createdAt: RFC3339, payload: { uid: "u1" } }, "BOOKING_CREATED", joined("BOOKING_CREATED", RFC3339, "u1"), (body) => ({ "x-cal-signature-256": hmac(body) }));
// A payload template of one's own needs no triggerEvent.
add("calcom", { title: "Lunch", createdAt: RFC3339 }, "calcom", null, (body) => ({ "x-cal-signature-256": hmac(body) }));
add("calendly", { event: "invitee.created", created_at: RFC3339, payload: { uri: "https://api.calendly.com/1" } }, "invitee.created", joined("invitee.created", "https://api.calendly.com/1", RFC3339), pair("calendly-webhook-signature", SECONDS, "v1", dotted));
add("chargebee", { id: "ev_1", event_type: "customer_created" }, "customer_created", "ev_1", () => ({ authorization: `Basic ${Buffer.from("user:pass").toString("base64")}` }), { secret: "user:pass" });
add("checkout", { id: "evt_1", type: "payment_approved", data: { id: "pay_1" } }, "payment_approved", "evt_1", (body) => ({ "cko-signature": hmac(body) }));
add("circle", { notificationId: "n1", notificationType: "payments" }, "payments", "n1", (body) => ({ "x-circle-signature": sign("sha256", body, P256).toString("base64"), "x-circle-key-id": "k1" }), { secret: spki(P256).toString("base64") });
add("coinbase-commerce", { event: { id: "e1", type: "charge:confirmed" } }, "charge:confirmed", "e1", (body) => ({ "x-cc-webhook-signature": hmac(body) }));
add("courier", { type: "message:updated", data: { id: "1" } }, "message:updated", null, pair("courier-signature", MILLIS, "signature", dotted));
add("customerio", { event_id: "e1", object_type: "email", metric: "opened", data: { customer_id: "c1" } }, "email.opened", "e1", (body) => ({ "x-cio-timestamp": SECONDS, "x-cio-signature": hmac(`v0:${SECONDS}:${body}`) }));
const ed25519 = (header, at, between) => (body) => ({ [`${header[1]}`]: at, [`${header[0]}`]: sign(null, at + between + body, ED25519).toString(header[2]) });
const raw = spki(ED25519).subarray(12);
add("discord-events", { version: 1, application_id: "1", type: 1, event: { type: "APPLICATION_AUTHORIZED" } }, "APPLICATION_AUTHORIZED", null, ed25519(["x-signature-ed25519", "x-signature-timestamp", "hex"], SECONDS, ""), { secret: raw.toString("hex") });
add("docusign", { event: "envelope-completed", data: { envelopeId: "e1" } }, "envelope-completed", null, (body) => ({ "x-docusign-signature-1": hmac("another", "base64"), "x-docusign-signature-42": hmac(body, "base64") }));
add("dropbox", { list_folder: { accounts: ["1"] } }, "dropbox", null, (body) => ({ "x-dropbox-signature": hmac(body) }));
add("elevenlabs", { type: "post_call_transcription", data: { conversation_id: "c1" } }, "post_call_transcription", joined("post_call_transcription", "c1"), pair("elevenlabs-signature", SECONDS, "v0", dotted));
add("enode", [{ event: "user:vehicle:updated", user: { id: "u1" } }], "enode", null, (body) => ({ "x-enode-signature": `sha1=${hmac(body, "hex", "sha1")}` }));
add("fastspring", { events: [{ id: "e1", type: "order.completed", data: { order: "o1" } }] }, "fastspring", null, (body) => ({ "x-fs-signature": hmac(body, "base64") }));
add("figma", { event_type: "FILE_UPDATE", passcode: SECRET, file_key: "f1" }, "FILE_UPDATE", null, () => ({}));
add("gitea", { repository: { full_name: "a/b" } }, "push", ID, (body) => ({ "x-gitea-delivery": ID, "x-gitea-event": "push", "x-gitea-signature": hmac(body), "x-github-event": "push", "x-hub-signature-256": `sha256=${hmac(body)}` }));
add("github-secret-scanning", [{ type: "mycompany_api_token", token: "t" }], "github-secret-scanning", null, (body) => ({ "github-public-key-identifier": "k1", "github-public-key-signature": sign("sha256", body, P256).toString("base64") }), { secret: spki(P256).toString("base64") });
add("gitlab-signed", { object_kind: "push" }, "push", ID, webhook(KEY), { secret: WHSEC });
add("gocardless", { events: [{ id: "EV1", resource_type: "payments", action: "confirmed", links: { payment: "PM1" } }] }, "gocardless", null, (body) => ({ "webhook-signature": hmac(body) }));
add("grafana", { status: "firing", groupKey: "g" }, "firing", null, (body) => ({ "x-grafana-alerting-signature": hmac(body) }));
add("grafana-timestamp", { status: "resolved", groupKey: "g" }, "resolved", null, (body) => ({ "x-grafana-alerting-signature-timestamp": SECONDS, "x-grafana-alerting-signature": hmac(`${SECONDS}:${body}`) }));
add("huggingface", { event: { action: "update", scope: "repo" }, repo: { id: "r1" } }, "repo", null, () => ({ "x-webhook-secret": SECRET }));
add("intercom", { type: "notification_event", id: "notif_1", topic: "conversation.user.created", data: { item: { id: "1" } } }, "conversation.user.created", "notif_1", (body) => ({ "x-hub-signature": `sha1=${hmac(body, "hex", "sha1")}` }));
add("intuit", { eventNotifications: [{ realmId: "1", dataChangeEvent: { entities: [{ name: "Customer", id: "1", operation: "Create" }] } }] }, "intuit", null, (body) => ({ "intuit-signature": hmac(body, "base64") }));
add("knock", { id: "k1", type: "message.sent" }, "message.sent", "k1", pair("x-knock-signature", MILLIS, "s", dotted, "base64"));
add("lemon-squeezy", { meta: { event_name: "order_created" }, data: { id: "1" } }, "order_created", null, (body) => ({ "x-signature": hmac(body) }));
add("linkedin", { notificationId: 7, type: "ORGANIZATION_SOCIAL_ACTION_NOTIFICATIONS" }, "ORGANIZATION_SOCIAL_ACTION_NOTIFICATIONS", "7", (body) => ({ "x-li-signature": hmac(`hmacsha256=${body}`) }));
add("lithic", { event_type: "card_transaction.updated" }, "card_transaction.updated", ID, webhook(KEY), { secret: WHSEC });
add("microsoft-graph", { value: [{ subscriptionId: "s1", clientState: SECRET, changeType: "updated", resource: "users/1" }, { subscriptionId: "s1", clientState: SECRET, lifecycleEvent: "missed" }] }, "microsoft-graph", null, () => ({}));
add("mux", { id: "m1", type: "video.asset.ready", object: { id: "a1" } }, "video.asset.ready", "m1", pair("mux-signature", SECONDS, "v1", dotted));
add("notion", { id: "n1", type: "page.created", entity: { id: "p1" } }, "page.created", "n1", (body) => ({ "x-notion-signature": `sha256=${hmac(body)}` }));
add("nylas", { id: "n1", type: "message.created" }, "message.created", "n1", (body) => ({ "x-nylas-signature": hmac(body) }));
add("okta", { eventType: "com.okta.event_hook", data: { events: [{ uuid: "u1", eventType: "user.session.start", actor: { id: "a1" } }] } }, "okta", null, () => ({ authorization: SECRET }));
add("orb", { id: "o1", type: "invoice.issued" }, "invoice.issued", "o1", (body) => ({ "x-orb-timestamp": RFC3339, "x-orb-signature": `v1=${hmac(`v1:${RFC3339}:${body}`)}` }));
add("pagerduty", { event: { id: "p1", event_type: "incident.triggered", data: { id: "i1" } } }, "incident.triggered", "p1", (body) => ({ "x-pagerduty-signature": `v1=${hmac("another")},v1=${hmac(body)}` }));
add("circleci", { id: "c1", type: "workflow-completed" }, "workflow-completed", "c1", (body) => ({ "circleci-signature": `v1=${hmac(body)}` }));
add("paystack", { event: "charge.success", data: { id: 302961 } }, "charge.success", null, (body) => ({ "x-paystack-signature": hmac(body, "hex", "sha512") }));
add("persona", { data: { id: "evt_1", attributes: { name: "inquiry.completed", payload: { data: { id: "inq_1" } } } } }, "inquiry.completed", "evt_1", (body) => ({ "persona-signature": `t=${SECONDS},v1=${hmac("another")} t=${SECONDS},v1=${hmac(dotted(SECONDS, body))}` }));
add("polar", { type: "order.created" }, "order.created", ID, webhook("polar_whs_text"), { secret: "polar_whs_text" });
add("postmark", { RecordType: "Bounce", MessageID: "m1" }, "Bounce", null, () => ({ authorization: `Basic ${Buffer.from("user:pass").toString("base64")}` }), { secret: "user:pass" });
// postmarkapp.com/developer/webhooks/inbound-webhook: mail that comes in has no RecordType.
add("postmark", { FromName: "Postmarkapp Support", MessageStream: "inbound", From: "support@postmarkapp.com", To: "\"Firstname Lastname\" <yourhash+SampleHash@inbound.postmarkapp.com>", Subject: "Test subject", MessageID: "73e6d360-66eb-11e1-8e72-a8904824019b", MailboxHash: "SampleHash", TextBody: "This is a test text body.", Attachments: [{ Name: "test.txt", Content: "VGhpcyBpcyBhdHRhY2htZW50IGNvbnRlbnRzLCBiYXNlLTY0IGVuY29kZWQu", ContentType: "text/plain", ContentLength: 45 }] }, "Inbound", null, () => ({ authorization: `Basic ${Buffer.from("user:pass").toString("base64")}` }), { secret: "user:pass" });
add("pusher", { time_ms: 1790000000000, events: [{ name: "channel_occupied", channel: "c1" }] }, "pusher", null, (body) => ({ "x-pusher-key": "k", "x-pusher-signature": hmac(body) }));
add("pylon", { a: 1 }, "pylon", null, (body) => ({ "pylon-webhook-timestamp": SECONDS, "pylon-webhook-signature": `hs256=${hmac(dotted(SECONDS, body))}` }));
add("razorpay", { event: "payment.captured", payload: { payment: { entity: { id: "pay_1" } } } }, "payment.captured", ID, (body) => ({ "x-razorpay-event-id": ID, "x-razorpay-signature": hmac(body) }));
add("recharge", { order: { id: 1 } }, "recharge", null, pair("x-recharge-webhook-signature", SECONDS, "v1", dotted));
add("retell", { event: "call_started", call: { call_id: "c1" } }, "call_started", null, (body) => ({ "x-retell-signature": `v=${MILLIS},d=${hmac(body + MILLIS)}` }));
add("revolut", { event: "ORDER_COMPLETED", order_id: "o1" }, "ORDER_COMPLETED", null, (body) => ({ "revolut-request-timestamp": MILLIS, "revolut-signature": `v1=${hmac(`v1.${MILLIS}.${body}`)}` }));
add("sanity", { _id: "d1" }, "update", ID, (body) => ({ "idempotency-key": ID, "sanity-operation": "update", ...pair("sanity-webhook-signature", MILLIS, "v1", dotted, "base64url")(body) }));
add("segment", { messageId: "m1", type: "track", userId: "u1" }, "track", "m1", (body) => ({ "x-signature": hmac(body, "hex", "sha1") }));
add("sentry", { action: "created", data: { issue: { id: "1" } } }, "issue", ID, (body) => ({ "request-id": ID, "sentry-hook-resource": "issue", "sentry-hook-signature": hmac(body) }));
const slack = (body) => ({ "x-slack-request-timestamp": SECONDS, "x-slack-signature": `v0=${hmac(`v0:${SECONDS}:${body}`)}`, "content-type": "application/x-www-form-urlencoded" });
add("slack-commands", "token=t&team_id=T1&command=%2Fweather&text=94070+now&trigger_id=13345224609.738474920.8088930838d88f008e0", "/weather", "13345224609.738474920.8088930838d88f008e0", slack);
add("slack-interactivity", `payload=${encodeURIComponent(JSON.stringify({ type: "block_actions", trigger_id: "12.34" }))}`, "block_actions", "12.34", slack);
add("smartcar", { eventId: "e1", eventType: "VEHICLE_STATE" }, "VEHICLE_STATE", "e1", (body) => ({ "sc-signature": hmac(body) }));
add("tally", { eventId: "e1", eventType: "FORM_RESPONSE", data: { formId: "f1" } }, "FORM_RESPONSE", "e1", (body) => ({ "tally-signature": hmac(body, "base64") }));
add("telnyx", { data: { id: "t1", event_type: "message.received", payload: { id: "m1" } } }, "message.received", "t1", ed25519(["telnyx-signature-ed25519", "telnyx-timestamp", "base64"], SECONDS, "|"), { secret: raw.toString("base64") });
add("tiktok", { event: "video.publish.completed", create_time: 1790000000, user_openid: "u1" }, "video.publish.completed", joined("video.publish.completed", "1790000000", "u1"), pair("tiktok-signature", SECONDS, "s", dotted));
add("trello", { action: { id: "a1", type: "updateCard" }, model: { id: "m1" } }, "updateCard", "a1", (body) => ({ "x-trello-webhook": hmac(body + URL_SET, "base64", "sha1") }), { url: URL_SET });
add("twitter", { for_user_id: "1", tweet_create_events: [] }, "twitter", null, (body) => ({ "x-twitter-webhooks-signature": `sha256=${hmac(body, "base64")}` }));
add("typeform", { event_id: "e1", event_type: "form_response", form_response: { form_id: "f1" } }, "form_response", "e1", (body) => ({ "typeform-signature": `sha256=${hmac(body, "base64")}` }));
add("vercel", { id: "v1", type: "deployment.created" }, "deployment.created", "v1", (body) => ({ "x-vercel-signature": hmac(body, "hex", "sha1") }));
add("wise", { event_type: "transfers#state-change" }, "transfers#state-change", ID, (body) => ({ "x-delivery-id": ID, "x-signature-sha256": sign("sha256", body, RSA).toString("base64") }), { secret: spki(RSA).toString("base64") });
add("woocommerce", { id: 727 }, "order.updated", "1", (body) => ({ "x-wc-webhook-delivery-id": "1", "x-wc-webhook-topic": "order.updated", "x-wc-webhook-signature": hmac(body, "base64") }));
add("workos", { id: "event_1", event: "dsync.user.created" }, "dsync.user.created", "event_1", (body) => ({ "workos-signature": `t=${MILLIS}, v1=${hmac(dotted(MILLIS, body))}` }));
add("xero", { events: [{ resourceId: "r1", eventCategory: "INVOICE", eventType: "UPDATE" }] }, "xero", null, (body) => ({ "x-xero-signature": hmac(body, "base64") }));
add("zendesk", { type: "zen:event-type:user.created", detail: { id: "1" } }, "zen:event-type:user.created", ID, (body) => ({ "x-zendesk-webhook-invocation-id": ID, "x-zendesk-webhook-signature-timestamp": RFC3339, "x-zendesk-webhook-signature": hmac(RFC3339 + body, "base64") }));
// A trigger sends the body that its owner has written.
add("zendesk", { ticket: "35436" }, "zendesk", ID, (body) => ({ "x-zendesk-webhook-invocation-id": ID, "x-zendesk-webhook-signature-timestamp": RFC3339, "x-zendesk-webhook-signature": hmac(RFC3339 + body, "base64") }));
add("zerohash", { a: 1 }, "account_balance.changed", ID, (body) => ({ "x-zh-hook-notification-id": ID, "x-zh-hook-payload-type": "account_balance.changed", "x-zh-hook-timestamp": MILLIS, "x-zh-hook-signature": hmac(body + MILLIS) }));

deliveries.sort((one, other) => (one.name < other.name ? -1 : 1));
const file = new URL("../../fixtures/senders/documented.json", import.meta.url);
writeFileSync(file, `[\n${deliveries.map((it) => JSON.stringify(it)).join(",\n")}\n]\n`);
