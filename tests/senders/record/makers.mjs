// The senders of `profiles/others.jsonl` whose maker has a library that verifies, in npm or PyPI. For Telegram it is a
// third party's, and GitLab names Standard Webhooks.
import { createHmac, createPrivateKey, createPublicKey, sign } from "node:crypto";
import { spawn, spawnSync } from "node:child_process";
import { createRequire } from "node:module";
import { createServer } from "node:http";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const require = createRequire(import.meta.url);
const hmac = (secret, content, coding, algorithm = "sha256") => createHmac(algorithm, secret).update(content).digest(coding);
const seconds = (ms) => String(Math.floor(ms / 1000));
const millis = (ms) => String(ms);
const pkcs8 = (text) => createPrivateKey({ key: Buffer.from(text, "base64"), format: "der", type: "pkcs8" });
const spki = (key, format = "der") => createPublicKey(key).export({ format, type: "spki" });
const secret = "8c1f5a0e9b2d4c6f8a1b3d5e7f901234";
const body = '{"id":"key-1","type":"invoice.paid","name":"Zoë"}';
const simple = { secret, key: "key-1", type: "invoice.paid", body, prefix: "" };

// A signature of the body alone, in one header.
const plain = (name, maker, header, verify, more = {}) => {
  const { prefix = "", coding = "hex", algorithm = "sha256" } = more;
  return {
    ...simple, name, maker, prefix,
    tag: (with_, _, text) => hmac(with_, text, coding, algorithm),
    headers: (tag) => ({ ...more.beside, [header]: prefix + tag }),
    signature: header, verify, ...more,
  };
};

// `t=…,v1=…` in one header.
const pair = (name, maker, header, time, verify, more = {}) => {
  const { prefix = "v1=", element = "t", space = "" } = more;
  const content = more.content ?? ((at, text) => `${at}.${text}`);
  return {
    ...simple, name, maker, split: ",", prefix, time,
    tag: (with_, at, text) => hmac(with_, content(at, text), more.coding ?? "hex"),
    headers: (tag, at) => ({ ...more.beside, [header]: `${element}=${at},${space}${prefix}${tag}` }),
    signature: header, verify, ...more,
  };
};

// The header is the secret.
const token = (name, maker, header, verify, more = {}) => ({
  ...simple, name, maker, isToken: true,
  tag: (with_) => with_, headers: (tag) => ({ [header]: (more.prefix ?? "") + tag }), signature: header, verify, ...more,
});

// Judges in Python: `makers.py` says what a library there says.
const inPython = (module) => async (it, headers, text) => {
  const run = spawnSync(process.env.PYTHON ?? "python3", [new URL("makers.py", import.meta.url).pathname, module], {
    input: JSON.stringify({ headers, body: text, secret: it.secret }), encoding: "utf8",
  });
  if (run.status !== 0) throw new Error(run.stderr);
  return JSON.parse(run.stdout);
};
const pythonVersion = (module) => {
  const run = spawnSync(process.env.PYTHON ?? "python3", ["-c", `from importlib.metadata import version; print(version("${module}"))`], { encoding: "utf8" });
  if (run.status !== 0) throw new Error(run.stderr);
  return run.stdout.trim();
};

export async function makers({ standard, ED25519, P256, OTHER, OTHER_ED25519, isValidSlackRequest, NOW }) {
  const { p256 } = await import("@noble/curves/nist.js");
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const { default: Lithic } = await import("lithic");
  const { default: Mux } = await import("@mux/mux-node");
  const { default: Orb } = await import("orb-billing");
  const { default: Telnyx } = await import("telnyx");
  const { webhooks: polar } = await import("@polar-sh/sdk/2026-04");
  const { WorkOS } = await import("@workos-inc/node");
  const { Retell } = await import("retell-sdk");
  const { isValidSignature: isOfSanity, encodeSignatureHeader } = await import("@sanity/webhook");
  const { verifyRequest } = await import("@copilot-extensions/preview-sdk");
  const { ElevenLabsClient } = require("@elevenlabs/elevenlabs-js");
  const { verifyWebhookSignature, signWebhookPayload } = require("@notionhq/client/build/src/webhooks.js");
  const coinbase = require("coinbase-commerce-node/lib/Webhook.js");
  const gocardless = require("gocardless-nodejs/webhooks");
  const Pusher = require("pusher");
  const Razorpay = require("razorpay");
  const { validateWebhook, validateSignature } = require("twitter-autohook");
  const smartcar = require("smartcar");
  const { basicAuthValidator } = require("./node_modules/chargebee/cjs/resources/webhook/auth.js");
  const { Bot, webhookCallback } = require("grammy");
  const { verifyWebhookEventMiddleware } = require("discord-interactions");
  const { Webhook: Standard } = require("standardwebhooks");

  const standardly = (name, maker, verify, more = {}) => ({ ...standard(name, maker, "webhook", { verify }), ...more });
  const slack = (name, text, type, key, other) => ({
    ...simple, name, maker: "@slack/bolt", prefix: "v0=", key, type, body: text, word: "Zo%C3%AB", other,
    time: { write: seconds, past: 300, ahead: null },
    tag: (with_, time, form) => hmac(with_, `v0:${time}:${form}`, "hex"),
    headers: (tag, time) => ({ "content-type": "application/x-www-form-urlencoded", "x-slack-request-timestamp": time, "x-slack-signature": `v0=${tag}` }),
    signature: "x-slack-signature",
    verify: (it, headers, form) => isValidSlackRequest({ signingSecret: it.secret, body: form, headers, nowMilliseconds: NOW }),
  });
  const bot = new Bot("1:a", { botInfo: { id: 1, is_bot: true, first_name: "a", username: "a_bot" } });
  const toBot = (headers, text) => new Promise((answered, failed) => {
    const callback = webhookCallback(bot, "callback", { secretToken: secret });
    const update = JSON.parse(text || "{}");
    callback(update, () => answered(true), headers["x-telegram-bot-api-secret-token"], () => answered(false)).then(() => answered(true), failed);
  });
  const discord = (it, headers, text) => new Promise((answered) => {
    const response = { setHeader() {}, end: () => answered(response.statusCode === 204) };
    const request = { header: (name) => headers[name.toLowerCase()], body: Buffer.from(text) };
    verifyWebhookEventMiddleware(it.secret)(request, response, () => answered(true)).catch(() => answered(false));
  });
  const ed25519 = (name, maker, signature, at, coding, between, verify, more) => ({
    ...simple, name, maker, private: ED25519, secret: spki(pkcs8(ED25519)).subarray(12).toString(coding),
    tag: (with_, time, text) => sign(null, Buffer.from(time + between + text), with_ === "8c1f" ? OTHER_ED25519 : pkcs8(ED25519)).toString(coding),
    headers: (tag, time) => ({ [signature]: tag, [at]: time }), signature, verify, ...more,
  });
  // Deterministic (RFC 6979), so that the recordings are, too.
  const ecdsa = (with_, text) => {
    const key = with_ === "8c1f" ? OTHER : Buffer.from(pkcs8(P256).export({ format: "jwk" }).d, "base64url");
    return Buffer.from(p256.sign(Buffer.from(text), key, { format: "der", lowS: false })).toString("base64");
  };
  const orbTime = (ms) => new Date(ms).toISOString().replace("Z", "");

  return [
    standardly("anthropic", "@anthropic-ai/sdk", (it, headers, text) =>
      new Anthropic({ apiKey: "none" }).beta.webhooks.unwrap(text, { headers, key: it.secret })),
    standardly("lithic", "lithic", (it, headers, text) => new Lithic({ apiKey: "none" }).webhooks.verifySignature(text, headers, it.secret),
      { type: "card.created", body: '{"event_type":"card.created","name":"Zoë"}' }),
    standardly("gitlab-signed", "standardwebhooks", (it, headers, text) => new Standard(it.secret).verify(text, headers),
      { type: "push", body: '{"object_kind":"push","name":"Zoë"}' }),
    ...["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "polar_whs_dGV4dA"].map((with_, index) => ({
      ...standard("polar", "@polar-sh/sdk", "webhook", {
        verify: (it, headers, text) => polar.validateEvent(text, headers, it.secret),
      }),
      secret: with_, type: "order.paid", body: '{"type":"order.paid","data":{"name":"Zoë"}}', file: index ? "polar-text" : "polar",
      tag: (given, time, text, it) => hmac(given === with_ && !index ? Buffer.from(with_.slice(6), "base64") : given, `${it.key}.${time}.${text}`, "base64"),
    })),
    plain("coinbase-commerce", "coinbase-commerce-node", "x-cc-webhook-signature",
      (it, headers, text) => coinbase.verifyEventBody(text, headers["x-cc-webhook-signature"], it.secret),
      { body: '{"event":{"id":"key-1","type":"charge:confirmed","name":"Zoë"}}', type: "charge:confirmed", signs: (it, _, text) => coinbase.computeSignature(text, it.secret) }),
    plain("gocardless", "gocardless-nodejs", "webhook-signature",
      (it, headers, text) => gocardless.parse(text, it.secret, headers["webhook-signature"]),
      { body: '{"events":[{"id":"EV1","resource_type":"payments","action":"confirmed","name":"Zoë"}]}', type: "gocardless", key: null }),
    plain("notion", "@notionhq/client", "x-notion-signature",
      (it, headers, text) => verifyWebhookSignature({ body: text, signature: headers["x-notion-signature"], verificationToken: it.secret }),
      { prefix: "sha256=", signs: (it, _, text) => signWebhookPayload({ body: text, verificationToken: it.secret }) }),
    plain("pusher", "pusher", "x-pusher-signature",
      (it, headers, text) => new Pusher({ appId: "1", key: "k", secret: it.secret }).webhook({ headers: { ...headers, "content-type": "application/json" }, rawBody: text }).isValid(),
      { beside: { "x-pusher-key": "k" }, body: '{"time_ms":1790000000000,"events":[{"name":"channel_occupied","channel":"Zoë"}]}', type: "pusher", key: null }),
    plain("razorpay", "razorpay", "x-razorpay-signature",
      (it, headers, text) => Razorpay.validateWebhookSignature(text, headers["x-razorpay-signature"], it.secret),
      { beside: { "x-razorpay-event-id": "key-1" }, body: '{"event":"payment.captured","name":"Zoë"}', type: "payment.captured" }),
    plain("smartcar", "smartcar", "sc-signature",
      (it, headers, text) => smartcar.verifyPayload(it.secret, headers["sc-signature"], JSON.parse(text)),
      // It serialises the body again.
      { body: '{"eventId":"key-1","eventType":"VEHICLE_STATE","name":"Zoë"}', type: "VEHICLE_STATE", other: "A / 😀",
        challenge: async (it) => ({ challenge: smartcar.hashChallenge(it.secret, "a-challenge") }) }),
    plain("twitter", "twitter-autohook", "x-twitter-webhooks-signature",
      (it, headers, text) => validateSignature(headers, { consumer_secret: it.secret }, text),
      { prefix: "sha256=", coding: "base64", key: null, type: "twitter", body: '{"for_user_id":"1","name":"Zoë"}',
        challenge: async (it) => validateWebhook("a-token", { consumer_secret: it.secret }) }),
    plain("airtable", `PyPI pyairtable ${pythonVersion("pyairtable")}`, "x-airtable-content-mac", inPython("pyairtable"),
      { prefix: "hmac-sha256=", secret: "c2VjcmV0LXNlY3JldA==", key: null, type: "airtable", word: "Zoe",
        body: '{"base":{"id":"app1"},"webhook":{"id":"ach1"},"timestamp":"2026-09-21T14:13:20.000Z","name":"Zoe"}', other: "A / B",
        tag: (with_, _, text) => hmac(with_ === "8c1f" ? with_ : Buffer.from(with_, "base64"), text, "hex") }),
    pair("mux", "@mux/mux-node", "mux-signature", { write: seconds, past: 300, ahead: null },
      (it, headers, text) => new Mux({ tokenId: "a", tokenSecret: "b" }).webhooks.verifySignature(text, headers, it.secret)),
    pair("elevenlabs", "@elevenlabs/elevenlabs-js", "elevenlabs-signature", { write: seconds, past: 1800, ahead: null },
      (it, headers, text) => new ElevenLabsClient({ apiKey: "none" }).webhooks.constructEvent(text, headers["elevenlabs-signature"], it.secret),
      { prefix: "v0=", body: '{"type":"post_call_transcription","data":{"conversation_id":"c1","name":"Zoë"}}', type: "post_call_transcription", key: '["post_call_transcription","c1"]' }),
    pair("workos", "@workos-inc/node", "workos-signature", { write: millis, past: 180, ahead: null },
      (it, headers, text) => new WorkOS("sk_none").webhooks.verifyHeader({ payload: text, sigHeader: headers["workos-signature"], secret: it.secret }),
      { space: " ", body: '{"id":"key-1","event":"user.created","name":"Zoë"}', type: "user.created",
        signs: async (it, at, text) => new WorkOS("sk_none").webhooks.computeSignature(at, text, it.secret) }),
    pair("sanity", "@sanity/webhook", "sanity-webhook-signature", { write: millis, past: null, ahead: null },
      (it, headers, text) => isOfSanity(text, headers["sanity-webhook-signature"], it.secret),
      { coding: "base64url", beside: { "idempotency-key": "key-1", "sanity-operation": "update" }, type: "update", body: '{"_id":"d1","name":"Zoë"}',
        signs: (it, at, text) => encodeSignatureHeader(text, Number(at), it.secret) }),
    pair("retell", "retell-sdk", "x-retell-signature", { write: millis, past: 300, ahead: 300 },
      (it, headers, text) => Retell.verify(text, it.secret, headers["x-retell-signature"]),
      { prefix: "d=", element: "v", content: (at, text) => text + at, key: null, type: "call_started", body: '{"event":"call_started","name":"Zoë"}',
        signs: (it, _, text) => Retell.sign(text, it.secret) }),
    {
      ...simple, name: "orb", maker: "orb-billing", prefix: "v1=", split: " ",
      time: { write: orbTime, past: 300, ahead: 300 }, times: ["2026-09-21T14:13:20Z", "2026-09-21T14:13:20", "2026-09-21T16:13:20+02:00"],
      tag: (with_, time, text) => hmac(with_, `v1:${time}:${text}`, "hex"),
      headers: (tag, time) => ({ "x-orb-timestamp": time, "x-orb-signature": `v1=${tag}` }), signature: "x-orb-signature",
      signs: (it, timestamp, text) => new Orb({ apiKey: "none" }).webhooks.signPayload(text, { timestamp, secret: it.secret }),
      verify: (it, headers, text) => new Orb({ apiKey: "none" }).webhooks.verifySignature(text, headers, it.secret),
    },
    ed25519("telnyx", "telnyx", "telnyx-signature-ed25519", "telnyx-timestamp", "base64", "|",
      (it, headers, text) => new Telnyx({ apiKey: "none" }).webhooks.unwrap(text, { headers, key: it.secret }),
      { time: { write: seconds, past: 300, ahead: 300 }, body: '{"data":{"id":"key-1","event_type":"message.received","name":"Zoë"}}', type: "message.received" }),
    ed25519("discord-events", "discord-interactions", "x-signature-ed25519", "x-signature-timestamp", "hex", "", discord,
      { time: { write: seconds, past: null, ahead: null }, key: null, type: "ENTITLEMENT_CREATE", body: '{"type":1,"event":{"type":"ENTITLEMENT_CREATE","name":"Zoë"}}' }),
    {
      ...simple, name: "github-secret-scanning", maker: "@copilot-extensions/preview-sdk", key: null, type: "github-secret-scanning",
      private: P256, secret: spki(pkcs8(P256)).toString("base64"), body: '[{"type":"a_token","token":"Zoë"}]',
      tag: (with_, _, text) => ecdsa(with_, text),
      headers: (tag) => ({ "github-public-key-identifier": "k1", "github-public-key-signature": tag }), signature: "github-public-key-signature",
      verify: (_, headers, text) => verifyRequest(text, headers["github-public-key-signature"], spki(pkcs8(P256), "pem")),
    },
    token("chargebee", "chargebee", "authorization",
      (it, headers) => basicAuthValidator((user, password) => `${user}:${password}` === it.secret)(headers).then(() => true),
      { prefix: "Basic ", secret: "user:pass", tag: (with_) => Buffer.from(with_).toString("base64"), body: '{"id":"key-1","event_type":"customer_created","name":"Zoë"}', type: "customer_created" }),
    token("telegram", "grammy", "x-telegram-bot-api-secret-token", (_, headers, text) => toBot(headers, text),
      { body: '{"update_id":10000,"message":{"text":"Zoë"}}', key: "10000", type: "telegram" }),
    token("huggingface", `PyPI huggingface-hub ${pythonVersion("huggingface-hub")}`, "x-webhook-secret", inPython("huggingface_hub"),
      { body: '{"event":{"action":"update","scope":"repo"},"name":"Zoë"}', key: null, type: "repo" }),
    slack("slack-commands", "token=t&command=%2Fweather&text=Zo%C3%AB&trigger_id=1.2", "/weather", "1.2", "%F0%9F%98%80"),
    slack("slack-interactivity", `payload=${encodeURIComponent('{"type":"block_actions","trigger_id":"12.34","name":"Zoë"}')}`, "block_actions", "12.34", "%5Cu0041"),
  ];
}

// What Alertmanager itself sends, with a token: its version, the headers and the body.
export async function alertmanager(NOW) {
  const program = process.env.ALERTMANAGER ?? "prometheus-alertmanager";
  const version = spawnSync(program, ["--version"], { encoding: "utf8" });
  const found = /version (\S+)/.exec(version.stdout + version.stderr);
  if (!found) throw new Error(`no Alertmanager: ${version.error ?? version.stderr}`);
  const directory = mkdtempSync(join(tmpdir(), "alertmanager-"));
  const port = (server) => server.address().port;
  let received;
  const delivered = new Promise((done) => (received = done));
  const server = createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      response.end();
      received({ headers: { authorization: request.headers.authorization, "content-type": request.headers["content-type"] }, body: Buffer.concat(parts).toString() });
    });
  });
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const own = createServer();
  await new Promise((done) => own.listen(0, "127.0.0.1", done));
  const api = port(own);
  await new Promise((done) => own.close(done));
  const config = join(directory, "config.yml");
  writeFileSync(config, `route: { receiver: hook, group_wait: 0s, group_by: [alertname] }
receivers: [{ name: hook, webhook_configs: [{ url: "http://127.0.0.1:${port(server)}/", http_config: { authorization: { credentials: ${secret} } } }] }]\n`);
  const args = [`--config.file=${config}`, `--storage.path=${directory}`, `--web.listen-address=127.0.0.1:${api}`, "--cluster.listen-address=", "--web.external-url=http://alertmanager.example"];
  const running = spawn(program, args, { stdio: "ignore" });
  const alerts = JSON.stringify([{ labels: { alertname: "Zoë" }, startsAt: new Date(NOW).toISOString() }]);
  const post = () => fetch(`http://127.0.0.1:${api}/api/v2/alerts`, { method: "POST", headers: { "content-type": "application/json" }, body: alerts }).catch(() => null);
  for (let tries = 0; tries < 100 && !(await post())?.ok; tries += 1) await new Promise((done) => setTimeout(done, 100));
  const delivery = await delivered;
  running.kill();
  server.close();
  return { maker: `alertmanager ${found[1]}`, secret, key: null, type: "firing", delivery };
}
