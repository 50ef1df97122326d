// Records what the makers' own libraries say about deliveries: those that they sign, and the same with mistakes. For
// Twitch it is a third party's, since Twitch has none.
//
// Run with: npm install --ignore-scripts --no-package-lock --legacy-peer-deps && node record.mjs
//
// PyPI's pyairtable, huggingface-hub and fastapi, and Debian's prometheus-alertmanager must be there, too; PYTHON names
// another python3. It writes ../../fixtures/senders/*.json, which `tests/pipeline/senders.rs` reads. The clock stands still.
import { createHmac, createPrivateKey, createPublicKey, sign, verify } from "node:crypto";
import { readFileSync, writeFileSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { Readable } from "node:stream";
import { alertmanager, makers } from "./makers.mjs";

const require = createRequire(import.meta.url);
const NOW = 1790000000000;
const Real = Date;
globalThis.Date = class extends Real {
  constructor(...given) {
    given.length ? super(...given) : super(NOW);
  }
  static now() {
    return NOW;
  }
};

const hmac = (secret, content, coding) => createHmac("sha256", secret).update(content).digest(coding);
const seconds = (ms) => String(Math.floor(ms / 1000));
const millis = (ms) => String(ms);
const rfc3339 = (ms) => new Real(ms).toISOString().replace(".000Z", "Z");
const version = (name) => {
  if (!name) return "none: judged by node:crypto";
  if (name.includes(" ")) return name.replace("PyPI ", "");
  const path = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(path)).version}`;
};
// Private keys of no use elsewhere, in the form in which they sign in tests.
const ED25519 = "MC4CAQAwBQYDK2VwBCIEIIwfWg6bLUxvihs9Xn+QEjSMH1oOmy1Mb4obPV5/kBI0";
const P256 = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgcXBpZF2oQdli2pV4KF3dYLvn9/SrhDkR75DCK5jnrdKhRANCAASTtNKsOrHb2MZfRAYBfCR9ztK4QBptpUrYJVCEch2f8/6axU4BijNbaMYvxRQO0fEUFhiRWkA3YDI9aMH3I/Wr";
// The key and the signature of Svix's server, which publishes them in its tests:
// github.com/svix/svix-webhooks, server/svix-server/src/worker.rs, test_asymmetric_key_signing.
const SVIX = {
  key: "6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==",
  id: "msg_p5jXN8AQM9LWM0D4loKWxJek", time: "1614265330", body: '{"test": 2432232314}',
  signature: "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==",
};
const pkcs8 = (text) => createPrivateKey({ key: Buffer.from(text, "base64"), format: "der", type: "pkcs8" });
const ed25519 = (seed) => pkcs8(Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]).toString("base64"));
const spki = (key) => createPublicKey(key).export({ format: "der", type: "spki" });
const OTHER = Buffer.alloc(32, 7);
const OTHER_ED25519 = ed25519(OTHER);
const SVIX_KEY = ed25519(Buffer.from(SVIX.key, "base64").subarray(0, 32));
const verifyV1a = (headers, body) => {
  const [id, time, signatures] = ["id", "timestamp", "signature"].map((name) => headers[`webhook-${name}`]);
  const tags = signatures.split(" ").filter((it) => it.startsWith("v1a,")).map((it) => Buffer.from(it.slice(4), "base64"));
  const content = Buffer.from(`${id}.${time}.${body}`);
  return Math.abs(NOW / 1000 - Number(time)) <= 300 && tags.some((tag) => verify(null, content, createPublicKey(SVIX_KEY), tag));
};
const URL_SET = "https://example.com/hooks?a=b";

// What SendGrid itself has signed: the tests of its package verify that.
const publishedBySendgrid = (EventWebhook) => {
  const published = [];
  const { convertPublicKeyToECDSA, verifySignature } = EventWebhook.prototype;
  let secret;
  EventWebhook.prototype.convertPublicKeyToECDSA = function (key) {
    secret = key;
    return convertPublicKeyToECDSA.call(this, key);
  };
  EventWebhook.prototype.verifySignature = function (key, body, tag, time) {
    const accepted = verifySignature.call(this, key, body, tag, time);
    const name = "x-twilio-email-event-webhook";
    published.push({ secret, headers: { [`${name}-signature`]: tag, [`${name}-timestamp`]: String(time) }, body, accepted });
    return accepted;
  };
  globalThis.describe = globalThis.it = (_, run) => run();
  globalThis.expect = () => ({ to: { equal() {} } });
  require("@sendgrid/eventwebhook/src/eventwebhook.spec.js");
  Object.assign(EventWebhook.prototype, { convertPublicKeyToECDSA, verifySignature });
  return published;
};

// ---- The senders: how one signs (by the maker's function if it has one), and the maker's verifier.

const standard = (name, maker, prefix, Webhook) => {
  const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
  const key = Buffer.from(secret.slice(6), "base64");
  return {
    name, maker, secret, key: "msg_p5jXN8AQM9LSM0D4loKWxJek", type: "invoice.paid",
    body: '{"type":"invoice.paid","data":{"name":"Zoë"}}',
    time: { write: seconds, past: 300, ahead: 300 },
    tag: (with_, time, body, it) => hmac(with_ === secret ? key : with_, `${it.key}.${time}.${body}`, "base64"),
    headers: (tag, time, it) => ({
      [`${prefix}-id`]: it.key,
      [`${prefix}-timestamp`]: time,
      [`${prefix}-signature`]: `v1,${tag}`,
    }),
    signature: `${prefix}-signature`, keyHeader: `${prefix}-id`, split: " ", prefix: "v1,",
    signs: Webhook.sign,
    verify: Webhook.verify,
  };
};

async function senders() {
  const { Webhook: Standard } = require("standardwebhooks");
  const { Webhook: Svix } = require("svix");
  const { default: OpenAI } = await import("openai");
  const octokit = await import("@octokit/webhooks-methods");
  const { default: Stripe } = await import("stripe");
  const { isValidSlackRequest } = require("./node_modules/@slack/bolt/dist/receivers/verify-request.js");
  await import("@shopify/shopify-api/adapters/node");
  const { shopifyApi } = await import("@shopify/shopify-api");
  const { WebhooksHelper } = require("square");
  const { Signature: HubSpot } = require("@hubspot/api-client");
  const { Paddle, Environment } = await import("@paddle/paddle-node-sdk");
  const { LinearWebhookClient } = await import("@linear/sdk/webhooks");
  const { WebhooksManager } = require("./node_modules/box-node-sdk/lib/managers/webhooks.js");
  const { computeWebhookSignature } = require("./node_modules/box-node-sdk/lib/internal/utils.js");
  const { HttpReceiver } = require("@zoom/rivet/users");
  const { validateSignature } = await import("@line/bot-sdk");
  const { verifyKey: verifyDiscord, verifyKeyMiddleware } = require("discord-interactions");
  const { EventWebhook } = require("@sendgrid/eventwebhook");
  const { p256 } = await import("@noble/curves/nist.js");
  const { WebflowClient } = await import("webflow-api");
  const twitch = await twurple();
  const meta = await whatsapp();

  const secret = "8c1f5a0e9b2d4c6f8a1b3d5e7f901234";
  const simple = { secret, key: "key-1", type: "invoice.paid", body: '{"id":"key-1","type":"invoice.paid","name":"Zoë"}' };
  const wh = standard("standard-webhooks", "standardwebhooks", "webhook", {
    sign: (it, time, body) => new Standard(it.secret).sign(it.key, new Real(Number(time) * 1000), body),
    verify: (it, headers, body) => new Standard(it.secret).verify(body, headers),
  });
  const svix = standard("svix", "svix", "svix", {
    sign: (it, time, body) => new Svix(it.secret).sign(it.key, new Real(Number(time) * 1000), body),
    verify: (it, headers, body) => new Svix(it.secret).verify(body, headers),
  });
  const v1a = {
    ...wh, name: "standard-webhooks-v1a", prefix: "v1a,", private: `whsk_${SVIX.key}`,
    secret: `whpk_${Buffer.from(SVIX.key, "base64").subarray(32).toString("base64")}`,
    // No package of the maker verifies these: Node judges by the specification, and Svix has published a signature.
    maker: null,
    published: [{
      secret: `whpk_${Buffer.from(SVIX.key, "base64").subarray(32).toString("base64")}`,
      headers: { "webhook-id": SVIX.id, "webhook-timestamp": SVIX.time, "webhook-signature": SVIX.signature },
      body: SVIX.body, accepted: true,
    }],
    tag: (with_, time, body, it) =>
      sign(null, Buffer.from(`${it.key}.${time}.${body}`), with_ === "8c1f" ? OTHER_ED25519 : SVIX_KEY).toString("base64"),
    headers: (tag, time, it) => ({ ...wh.headers(tag, time, it), "webhook-signature": `v1a,${tag}` }),
    signs: null,
    verify: (_, headers, body) => verifyV1a(headers, body),
  };
  const client = new OpenAI({ apiKey: "none" });
  const openai = standard("openai", "openai", "webhook", {
    verify: (it, headers, body) => client.webhooks.unwrap(body, headers, it.secret),
  });
  openai.key = "wh_685342e6c53c8190a1be43f081506c52";

  const shopify = shopifyApi({
    apiKey: "key", apiSecretKey: secret, hostName: "example.com", isEmbeddedApp: false,
    apiVersion: "2026-04", logger: { level: 0, log: () => {} },
  });
  const zoomPort = await freePort();
  const zoom = new HttpReceiver({ webhooksSecretToken: secret, port: zoomPort, endpoints: "/zoom/events" });
  zoom.init({ eventEmitter: { emit: async () => {} } });
  await zoom.start(zoomPort);
  const toZoom = (headers, body) =>
    fetch(`http://127.0.0.1:${zoomPort}/zoom/events`, { method: "POST", headers, body: Buffer.from(body) });

  return [
    wh,
    v1a,
    svix,
    openai,
    {
      ...simple, name: "github", maker: "@octokit/webhooks-methods", type: "issues",
      tag: (with_, _, body) => hmac(with_, body, "hex"),
      headers: (tag, _, it) => ({ "x-github-delivery": it.key, "x-github-event": it.type, "x-hub-signature-256": `sha256=${tag}` }),
      signature: "x-hub-signature-256", prefix: "sha256=",
      signs: (it, _, body) => octokit.sign(it.secret, body),
      verify: (it, headers, body) => octokit.verify(it.secret, body, headers["x-hub-signature-256"]),
    },
    {
      ...simple, name: "stripe", maker: "stripe", secret: "whsec_8c1f5a0e9b2d4c6f", split: ",", prefix: "v1=",
      time: { write: seconds, past: 300, ahead: null },
      tag: (with_, time, body) => hmac(with_, `${time}.${body}`, "hex"),
      headers: (tag, time) => ({ "stripe-signature": `t=${time},v1=${tag}` }),
      signature: "stripe-signature",
      signs: (it, time, body) =>
        Stripe.webhooks.generateTestHeaderString({ payload: body, secret: it.secret, timestamp: Number(time) }),
      verify: (it, headers, body) => Stripe.webhooks.constructEvent(Buffer.from(body), headers["stripe-signature"], it.secret),
    },
    {
      ...simple, name: "slack", maker: "@slack/bolt", prefix: "v0=", key: "Ev0PV52K21", type: "app_mention",
      body: '{"type":"event_callback","event_id":"Ev0PV52K21","event":{"type":"app_mention","text":"Zoë"}}',
      time: { write: seconds, past: 300, ahead: null },
      tag: (with_, time, body) => hmac(with_, `v0:${time}:${body}`, "hex"),
      headers: (tag, time) => ({ "x-slack-request-timestamp": time, "x-slack-signature": `v0=${tag}` }),
      signature: "x-slack-signature",
      verify: (it, headers, body) => isValidSlackRequest({ signingSecret: it.secret, body, headers, nowMilliseconds: NOW }),
    },
    {
      ...simple, name: "shopify", maker: "@shopify/shopify-api", type: "orders/create",
      tag: (with_, _, body) => hmac(with_, body, "base64"),
      headers: (tag, _, it) => ({
        "x-shopify-webhook-id": it.key, "x-shopify-topic": it.type, "x-shopify-shop-domain": "a.myshopify.com",
        "x-shopify-api-version": "2026-04", "x-shopify-hmac-sha256": tag,
      }),
      signature: "x-shopify-hmac-sha256", prefix: "",
      verify: async (_, headers, body) =>
        (await shopify.webhooks.validate({
          rawBody: body,
          rawRequest: { method: "POST", url: "/", headers },
          rawResponse: {},
        })).valid,
    },
    {
      ...simple, name: "square", maker: "square", prefix: "", url: URL_SET, key: "key-1",
      body: '{"event_id":"key-1","type":"invoice.paid","name":"Zoë"}',
      tag: (with_, _, body, it) => hmac(with_, it.url + body, "base64"),
      headers: (tag) => ({ "x-square-hmacsha256-signature": tag }),
      signature: "x-square-hmacsha256-signature",
      verify: (it, headers, body) =>
        WebhooksHelper.verifySignature({
          requestBody: body, signatureHeader: headers["x-square-hmacsha256-signature"],
          signatureKey: it.secret, notificationUrl: URL_SET,
        }),
    },
    {
      ...simple, name: "hubspot-v3", maker: "@hubspot/api-client", prefix: "", url: URL_SET, method: "POST", key: null, type: "hubspot-v3",
      body: '[{"eventId":1,"subscriptionType":"contact.creation","name":"Zoë"},{"eventId":2,"subscriptionType":"contact.deletion"}]',
      time: { write: millis, past: 300, ahead: null },
      tag: (with_, time, body, it) => hmac(with_, it.method + it.url + body + time, "base64"),
      headers: (tag, time) => ({ "x-hubspot-request-timestamp": time, "x-hubspot-signature-v3": tag }),
      signature: "x-hubspot-signature-v3",
      signs: (it, time, body) =>
        HubSpot.getSignature("POST", "v3", { clientSecret: it.secret, url: URL_SET, requestBody: body, timestamp: time }),
      verify: (it, headers, body) =>
        HubSpot.isValid({
          signatureVersion: "v3", method: "POST", clientSecret: it.secret, url: URL_SET, requestBody: body,
          signature: headers["x-hubspot-signature-v3"], timestamp: headers["x-hubspot-request-timestamp"],
        }),
    },
    {
      ...simple, name: "paddle", maker: "@paddle/paddle-node-sdk", split: ";", prefix: "h1=",
      body: '{"event_id":"key-1","event_type":"invoice.paid","name":"Zoë"}',
      time: { write: seconds, past: 5, ahead: null },
      tag: (with_, time, body) => hmac(with_, `${time}:${body}`, "hex"),
      headers: (tag, time) => ({ "paddle-signature": `ts=${time};h1=${tag}` }),
      signature: "paddle-signature",
      verify: (it, headers, body) =>
        new Paddle("none", { environment: Environment.sandbox }).webhooks.isSignatureValid(body, it.secret, headers["paddle-signature"]),
    },
    {
      ...simple, name: "linear", maker: "@linear/sdk", prefix: "", type: "Issue",
      body: '{"action":"create","type":"Issue","name":"Zoë","webhookTimestamp":TIME}',
      time: { write: millis, past: 60, ahead: 60, inBody: true },
      tag: (with_, _, body) => hmac(with_, body, "hex"),
      headers: (tag, _, it) => ({ "linear-delivery": it.key, "linear-event": it.type, "linear-signature": tag }),
      signature: "linear-signature",
      verify: (it, headers, body) => new LinearWebhookClient(it.secret).verify(Buffer.from(body), headers["linear-signature"]),
    },
    {
      ...simple, name: "box", maker: "box-node-sdk", prefix: "", type: "FILE.UPLOADED",
      body: '{"type":"webhook_event","id":"key-1","trigger":"FILE.UPLOADED","name":"Zoë"}',
      time: { write: rfc3339, past: 600, ahead: 0 },
      tag: (with_, time, body) => hmac(with_, body + time, "base64"),
      headers: (tag, time) => ({
        "box-delivery-timestamp": time, "box-signature-version": "1", "box-signature-algorithm": "HmacSHA256",
        "box-signature-primary": tag,
      }),
      signature: "box-signature-primary",
      signs: (it, time, body) =>
        computeWebhookSignature(body, { "box-delivery-timestamp": time, "box-signature-version": "1", "box-signature-algorithm": "HmacSHA256" }, it.secret, false),
      verify: (it, headers, body) => WebhooksManager.validateMessage(body, headers, it.secret),
    },
    {
      ...simple, name: "zoom", other: "A / 😀", maker: "@zoom/rivet", prefix: "v0=", key: null, type: "meeting.started",
      body: '{"event":"meeting.started","payload":{"name":"Zoë"},"event_ts":1}',
      time: { write: seconds, past: null, ahead: null },
      tag: (with_, time, body) => hmac(with_, `v0:${time}:${body}`, "hex"),
      headers: (tag, time) => ({ "x-zm-request-timestamp": time, "x-zm-signature": `v0=${tag}` }),
      signature: "x-zm-signature",
      verify: async (_, headers, body) => (await toZoom(headers, body)).ok,
      challenge: async (it) => {
        const body = '{"event":"endpoint.url_validation","payload":{"plainToken":"qgg8vlvZRS6UYooatFL8Aw"},"event_ts":1}';
        const time = seconds(NOW);
        return (await toZoom(it.headers(it.tag(it.secret, time, body), time), body)).json();
      },
    },
    {
      ...simple, name: "discord", maker: "discord-interactions", prefix: "", key: "846462639134605312", type: "2",
      private: ED25519, secret: spki(pkcs8(ED25519)).subarray(12).toString("hex"),
      body: '{"id":"846462639134605312","type":2,"data":{"name":"Zoë"}}',
      time: { write: seconds, past: null, ahead: null },
      tag: (with_, time, body) => sign(null, Buffer.from(time + body), with_ === "8c1f" ? OTHER_ED25519 : pkcs8(ED25519)).toString("hex"),
      headers: (tag, time) => ({ "x-signature-ed25519": tag, "x-signature-timestamp": time }),
      signature: "x-signature-ed25519",
      verify: (it, headers, body) =>
        verifyDiscord(body, headers["x-signature-ed25519"], headers["x-signature-timestamp"], it.secret),
      challenge: (it) => new Promise((answered) => {
        const [time, body] = [seconds(NOW), '{"id":"1","type":1,"version":1}'];
        const headers = it.headers(it.tag(it.secret, time, body), time);
        const response = { setHeader() {}, end: (text) => answered(JSON.parse(text)) };
        verifyKeyMiddleware(it.secret)({ header: (name) => headers[name.toLowerCase()], body }, response, answered);
      }),
    },
    {
      ...simple, name: "sendgrid", maker: "@sendgrid/eventwebhook", prefix: "", key: null, type: "sendgrid",
      private: P256, secret: spki(pkcs8(P256)).toString("base64"),
      body: '[{"email":"a@example.com","event":"processed","sg_event_id":"key-1","name":"Zoë"},{"event":"bounce"}]\r\n',
      time: { write: seconds, past: 90000, ahead: null },
      // Deterministic (RFC 6979), so that the recordings are, too.
      tag: (with_, time, body) => {
        const key = with_ === "8c1f" ? OTHER : Buffer.from(pkcs8(P256).export({ format: "jwk" }).d, "base64url");
        return Buffer.from(p256.sign(Buffer.from(time + body), key, { format: "der", lowS: false })).toString("base64");
      },
      headers: (tag, time) => ({ "x-twilio-email-event-webhook-signature": tag, "x-twilio-email-event-webhook-timestamp": time }),
      signature: "x-twilio-email-event-webhook-signature",
      published: publishedBySendgrid(EventWebhook),
      verify: (it, headers, body) => {
        const webhook = new EventWebhook();
        return webhook.verifySignature(
          webhook.convertPublicKeyToECDSA(it.secret), Buffer.from(body),
          headers["x-twilio-email-event-webhook-signature"], headers["x-twilio-email-event-webhook-timestamp"],
        );
      },
    },
    {
      ...simple, name: "line", maker: "@line/bot-sdk", prefix: "", key: null, type: "line",
      body: '{"destination":"U1","events":[{"type":"message","name":"Zoë"}]}',
      tag: (with_, _, body) => hmac(with_, body, "base64"),
      headers: (tag) => ({ "x-line-signature": tag }),
      signature: "x-line-signature",
      verify: (it, headers, body) => validateSignature(body, it.secret, headers["x-line-signature"]),
    },
    {
      ...simple, name: "webflow", maker: "webflow-api", prefix: "", key: null, type: "form_submission",
      body: '{"triggerType":"form_submission","payload":{"name":"Zoë"}}',
      time: { write: millis, past: null, ahead: null },
      tag: (with_, time, body) => hmac(with_, `${time}:${body}`, "hex"),
      headers: (tag, time) => ({ "x-webflow-timestamp": time, "x-webflow-signature": tag }),
      signature: "x-webflow-signature",
      verify: (it, headers, body) =>
        new WebflowClient({ accessToken: "none" }).webhooks.verifySignature({ headers, body, secret: it.secret }),
    },
    {
      ...simple, name: "twitch", maker: "@twurple/eventsub-http", prefix: "sha256=", type: "channel.follow",
      body: '{"subscription":{"type":"channel.follow","status":"enabled"},"event":{"name":"Zoë"}}',
      time: { write: rfc3339, past: 600, ahead: null },
      times: [rfc3339(NOW).replace("Z", ".123456789Z")],
      tag: (with_, time, body, it) => hmac(with_, it.key + time + body, "hex"),
      headers: (tag, time, it, kind = "notification") => ({
        "twitch-eventsub-message-id": it.key, "twitch-eventsub-message-timestamp": time,
        "twitch-eventsub-message-type": kind, "twitch-eventsub-message-signature": `sha256=${tag}`,
      }),
      signature: "twitch-eventsub-message-signature", keyHeader: "twitch-eventsub-message-id",
      verify: async (_, headers, body) => (await twitch(headers, body)).isHandled,
      challenge: async (it) => {
        const [time, body] = [rfc3339(NOW), TWITCH_CHALLENGE];
        const headers = it.headers(it.tag(it.secret, time, body, it), time, it, "webhook_callback_verification");
        return (await twitch(headers, body)).answer;
      },
    },
    {
      ...simple, name: "meta", maker: "whatsapp", prefix: "sha256=", key: null, type: "whatsapp_business_account",
      body: '{"object":"whatsapp_business_account","entry":[{"id":"1","name":"Zoë"}]}',
      tag: (with_, _, body) => hmac(with_, body, "hex"),
      headers: (tag) => ({ "x-hub-signature-256": `sha256=${tag}` }),
      signature: "x-hub-signature-256",
      signs: (it, _, body) => meta.sign(body, it.secret),
      // As its listener compares them, which itself fails for every body.
      verify: (it, headers, body) => meta.sign(body, it.secret) === headers["x-hub-signature-256"]?.replace("sha256=", ""),
      queries: meta.asked,
    },
  ];
}

const TWITCH_CHALLENGE = '{"challenge":"pogchamp-kappa-360noscope-vohiyo","subscription":{"type":"channel.follow","status":"webhook_callback_verification_pending"}}';

// Calls the handler that the middleware gives to a router.
async function twurple() {
  const { EventSubMiddleware } = await import("@twurple/eventsub-http");
  const { ApiClient } = await import("@twurple/api");
  const { AppTokenAuthProvider } = await import("@twurple/auth");
  const apiClient = new ApiClient({ authProvider: new AppTokenAuthProvider("none", "none") });
  return async (headers, body) => {
    const secret = "8c1f5a0e9b2d4c6f8a1b3d5e7f901234";
    const logger = { minLevel: "critical" };
    const middleware = new EventSubMiddleware({ apiClient, hostName: "example.com", pathPrefix: "/", secret, logger, strictHostCheck: false });
    let handler, answer, isHandled = false;
    middleware.apply({ get() {}, post: (path, it) => (handler = path.includes("event/:id") ? it : handler) });
    const subscription = { id: "it", _verify() {}, _handleData: async () => { isHandled = true; } };
    middleware._subscriptions.set("it", subscription);
    const request = Object.assign(Readable.from([Buffer.from(body)]), { headers, params: { id: "it" } });
    let thrown;
    await handler(request, { setHeader() {}, writeHead() {}, end: (text) => (answer = text) }, (error) => (thrown = error));
    if (thrown) throw thrown;
    return { answer, isHandled };
  };
}

// The listener that answers challenges, and the function that makes the signature.
async function whatsapp() {
  const { generateXHub256Sig } = require("./node_modules/whatsapp/build/utils.js");
  const Webhooks = require("./node_modules/whatsapp/build/api/webhooks.js");
  const { WAConfigEnum: names } = require("./node_modules/whatsapp/build/types/enums.js");
  const log = console.log;
  console.log = () => {};
  const port = await freePort();
  const config = { [names.ListenerPort]: port, [names.WebhookEndpoint]: "hook", [names.WebhookVerificationToken]: "a token" };
  new Webhooks(config, null, "none").start(() => {});
  const asked = [];
  for (const query of [
    "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=a+token",
    "hub.verify_token=a%20token&hub.challenge=1158201444&hub.mode=subscribe",
    "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=another",
    "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=",
    "hub.mode=subscribe&hub.challenge=1158201444",
    "hub.mode=unsubscribe&hub.challenge=1158201444&hub.verify_token=a+token",
    "hub.challenge=1158201444&hub.verify_token=a+token",
  ]) {
    const answer = await fetch(`http://127.0.0.1:${port}/hook?${query}`);
    asked.push({ query, status: answer.status, body: await answer.text() });
  }
  console.log = log;
  return { sign: generateXHub256Sig, asked };
}

const bolt = () => require("./node_modules/@slack/bolt/dist/receivers/verify-request.js").isValidSlackRequest;

// A line for each case.
const oneLine = ({ cases, ...rest }) =>
  `${JSON.stringify(rest).slice(0, -1)},"cases":[\n${cases.map((it) => JSON.stringify(it)).join(",\n")}\n]}`;

const freePort = () =>
  new Promise((found) => {
    const server = createServer().listen(0, () => {
      const { port } = server.address();
      server.close(() => found(port));
    });
  });

// ---- The cases: genuine ones, and mistakes.

function* cases(it) {
  const write = it.time?.write ?? (() => "");
  const at = (ms, changes = {}) => {
    const time = changes.time ?? write(ms);
    const body = (changes.body ?? it.body).replace("TIME", time);
    const tag = it.tag(changes.secret ?? it.secret, time, body, { ...it, ...changes });
    return { headers: it.headers(tag, time, it), body };
  };
  const genuine = at(NOW);
  const with_ = (value) => ({ ...genuine, headers: { ...genuine.headers, [it.signature]: value } });
  const value = genuine.headers[it.signature];
  yield ["genuine", genuine];
  yield ["other body", at(NOW, { body: it.body.replace(it.word ?? "Zoë", it.other ?? "\\u0041 / 😀") })];
  yield ["one bit of the body", { ...genuine, body: genuine.body.replace("\"", "#") }];
  yield ["a space after the body", { ...genuine, body: genuine.body + " " }];
  yield ["a BOM before the body", { ...genuine, body: "\ufeff" + genuine.body }];
  yield ["a body that is cut", { ...genuine, body: genuine.body.slice(0, -1) }];
  yield ["no body", { ...genuine, body: "" }];
  const { [it.signature]: _, ...unsigned } = genuine.headers;
  yield ["no signature", { ...genuine, headers: unsigned }];
  yield ["an empty signature", with_("")];
  yield ["a tag that is cut", with_(value.slice(0, -2))];
  yield ["a tag that is longer", with_(value + "00")];
  yield ["a tag in upper case", with_(value.toUpperCase())];
  yield ["a tag without padding", with_(value.replace(/=+$/, ""))];
  yield ["a tag with URL characters", with_(value.replaceAll("+", "-").replaceAll("/", "_"))];
  yield ["a space after the tag", with_(value + " x")];
  if (it.prefix) {
    yield ["no prefix", with_(value.replace(it.prefix, ""))];
    yield ["another prefix", with_(value.replace(it.prefix, it.prefix.toUpperCase().replace(/\d/, "9")))];
  }
  yield ["another secret", at(NOW, { secret: "8c1f" })];
  if (it.split) {
    const [wrong, right] = [at(NOW, { secret: "8c1f" }).headers[it.signature], value].map((it_) => it_.slice(it_.indexOf(it.prefix)));
    const rest = value.slice(0, value.indexOf(it.prefix));
    yield ["a wrong tag before the right one", with_(rest + wrong + it.split + right)];
    yield ["a wrong tag after the right one", with_(rest + right + it.split + wrong)];
  }
  if (it.url) yield ["another URL", at(NOW, { url: "https://example.com/" })];
  if (it.method) yield ["another method", at(NOW, { method: "PUT" })];
  if (it.keyHeader) yield ["another key", { ...genuine, headers: { ...genuine.headers, [it.keyHeader]: "other" } }];
  if (it.time) {
    const { past, ahead } = it.time;
    const later = (secondsLater) => at(NOW + 1000 * secondsLater);
    yield ["just in time", later(-(past ?? 300))];
    yield ["stale", later(-(past ?? 300) - 1)];
    yield ["as far ahead as it may be", later(ahead ?? (it.name === "paddle" ? 5 : 300))];
    yield ["too far ahead", later((ahead ?? 300) + 1)];
    for (const time of it.times ?? []) yield ["nanoseconds", at(NOW, { time })];
    const now = write(NOW);
    for (const time of [`+${now}`, `-${now}`, `${now}.5`, `${now}x`, "1".repeat(30), "", " ", "now"]) {
      yield [`time ${time}`, at(NOW, { time })];
    }
  }
}

const judged = async (it, { headers, body }) => {
  try {
    return (await it.verify(it, headers, body)) !== false;
  } catch {
    return false;
  }
};

const mine = await senders();
const others = await makers({ standard, ED25519, P256, OTHER, OTHER_ED25519, isValidSlackRequest: bolt(), NOW });
const directory = new URL("../../fixtures/senders/", import.meta.url);
mkdirSync(directory, { recursive: true });
const only = process.argv.slice(2);
for (const it of [...mine, ...others].filter(({ name }) => !only.length || only.includes(name))) {
  const recorded = [];
  for (const [name, { headers, body }] of cases(it)) {
    recorded.push({ name, headers, body, accepted: await judged(it, { headers, body }) });
  }
  if (it.signs) {
    const { headers, body } = recorded[0];
    const made = await it.signs(it, it.time?.write(NOW), body);
    const ours = headers[it.signature];
    if (ours !== made && !ours.endsWith(it.prefix + made)) throw new Error(`${it.name}: ${made} is not ${ours}`);
  }
  if (!recorded[0].accepted || !recorded[1].accepted) throw new Error(`${it.name}: the genuine delivery is refused`);
  const { name, maker, secret, url, key, type } = it;
  const file = { maker: version(maker), signedByMaker: !!it.signs, secret, private: it.private, published: it.published, url, now: NOW, key, type, challenge: await it.challenge?.(it), queries: it.queries, cases: recorded };
  const text = others.includes(it) ? oneLine(file) : JSON.stringify(file, null, 1);
  writeFileSync(new URL(`${it.file ?? name}.json`, directory), text + "\n");
  const counts = [true, false].map((accepted) => recorded.filter((case_) => case_.accepted === accepted).length);
  console.log(`${name}: ${version(maker)}, ${counts[0]} accepted, ${counts[1]} refused${it.signs ? ", signed by the maker" : ""}`);
}
if (!only.length || only.includes("alertmanager")) {
  const { delivery, ...rest } = await alertmanager(NOW);
  const case_ = { name: "sent", ...delivery, accepted: true };
  const file = { ...rest, signedByMaker: true, now: NOW, cases: [case_] };
  writeFileSync(new URL("alertmanager.json", directory), oneLine(file) + "\n");
  console.log(`alertmanager: ${rest.maker}, 1 sent by the maker`);
}
process.exit(0);
