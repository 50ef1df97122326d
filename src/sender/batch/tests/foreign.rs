//! Bodies of senders, after the samples of their documentation.

use super::*;

/// Of each item: its key, event type and order, and what is kept.
fn rows(sender: &Sender, body: &str) -> Vec<[String; 4]> {
    let parts = parts(sender, body);
    let row = |part: Part| {
        let kept = part
            .kept
            .map(|kept| String::from_utf8(kept.to_vec()).unwrap());
        [
            part.key.to_string(),
            part.kind
                .map_or_else(|reason| format!("! {reason}"), |kind| kind.to_string()),
            part.order.unwrap_or_default(),
            kept.unwrap_or_default(),
        ]
    };
    parts.into_iter().map(row).collect()
}

fn is_made(key: &str) -> bool {
    key.len() == 64 && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A message and the states of another, which have one id.
#[test]
fn messages_and_states_of_whatsapp_are_items() {
    let body = r#"{"object": "whatsapp_business_account", "entry": [
        {"id": "102290129340398", "changes": [
            {"value": {"messaging_product": "whatsapp",
                "metadata": {"display_phone_number": "15550783881", "phone_number_id": "106540352242922"},
                "contacts": [{"profile": {"name": "Sheena Nelson"}, "wa_id": "16505551234"}],
                "messages": [{"from": "16505551234", "id": "wamid.HBgLMTY1MDM4Nzk0MzkVAgASGBQzQTRBNjU5OUFFRTAzODEwMTQ0RgA=",
                    "timestamp": "1749416383", "type": "text", "text": {"body": "Does it come in another color?"}}]},
             "field": "messages"},
            {"value": {"messaging_product": "whatsapp", "metadata": {"phone_number_id": "106540352242922"},
                "statuses": [
                    {"id": "wamid.HBgLMTY1MDM4Nzk0MzkVAgARGBI3MTE=", "status": "delivered", "timestamp": "1750857384",
                     "recipient_id": "16505551234", "pricing": {"billable": true, "category": "service"}},
                    {"id": "wamid.HBgLMTY1MDM4Nzk0MzkVAgARGBI3MTE=", "status": "read", "timestamp": "1750857399",
                     "recipient_id": "16505551234"}]},
             "field": "messages"}]},
        {"id": "102290129340398", "time": 1739321024, "changes": [
            {"value": {"event": "APPROVED", "message_template_id": 1689556908129832}, "field": "message_template_status_update"}]}]}"#;
    let rows = rows(&Sender::meta(), body);
    let rows: Vec<_> = rows
        .iter()
        .map(|row| row.each_ref().map(String::as_str))
        .collect();
    let account = r#"{"id":"102290129340398","metadata":"#;
    let numbers =
        r#"{"display_phone_number": "15550783881", "phone_number_id": "106540352242922"}}"#;
    let states = format!(r#"{account}{{"phone_number_id": "106540352242922"}}}}"#);
    let message = "wamid.HBgLMTY1MDM4Nzk0MzkVAgASGBQzQTRBNjU5OUFFRTAzODEwMTQ0RgA=";
    let state = |state: &str| format!(r#"["wamid.HBgLMTY1MDM4Nzk0MzkVAgARGBI3MTE=","{state}"]"#);
    let kept = format!("{account}{numbers}");
    assert_eq!(rows[0], [message, "messages", "16505551234", &kept]);
    assert_eq!(
        rows[1],
        [&state("delivered"), "statuses", "16505551234", &states]
    );
    assert_eq!(
        rows[2],
        [&state("read"), "statuses", "16505551234", &states]
    );
    let [key, kind, order, kept] = rows[3];
    assert!(is_made(key) && rows.len() == 4);
    assert_eq!((kind, order), ("message_template_status_update", ""));
    let about =
        r#"{"object":"whatsapp_business_account","id":"102290129340398","time":1739321024}"#;
    assert_eq!(kept, about);
}

#[test]
fn messages_of_messenger_and_changes_of_a_page_are_items() {
    let body = r#"{"object":"page","entry":[
        {"id":"1751036168465324","time":1460923697656,"messaging":[
            {"sender":{"id":"982337741817574"},"recipient":{"id":"1751036168465324"},"timestamp":1460923697635,
             "message":{"mid":"mid.1460923697625:5c96e8279b55505308","text":"Test"}},
            {"sender":{"id":"982337741817574"},"recipient":{"id":"1751036168465324"},"timestamp":1460923697640,
             "read":{"watermark":1460923697635}}]},
        {"id":"1751036168465324","time":1460923697656,"changes":[{"field":"feed","value":{"item":"like","verb":"add"}}]},
        {"id":"1751036168465324","time":1460923697656,"changed_fields":["website"]}]}"#;
    let rows = rows(&Sender::meta(), body);
    let kinds: Vec<_> = rows.iter().map(|row| row[1].as_str()).collect();
    // The last one has the type of its delivery.
    assert_eq!(kinds, ["messaging", "messaging", "feed", "whole"]);
    assert!(rows.iter().all(|row| is_made(&row[0])));
    assert_eq!(rows[0][3], r#"{"object":"page","id":"1751036168465324"}"#);
    assert_eq!(rows[3][3], "");
}

#[test]
fn events_of_line_are_items() {
    let body = r#"{"destination":"xxxxxxxxxx","events":[
        {"type":"message","message":{"type":"text","id":"14353798921116","text":"Hello, world"},"timestamp":1625665242211,
         "source":{"type":"user","userId":"U80696558e1aa831"},"replyToken":"757913772c4646b784d4b7ce46d12671","mode":"active",
         "webhookEventId":"01FZ74A0TDDPYRVKNK77XKC3ZR","deliveryContext":{"isRedelivery":false}},
        {"type":"follow","timestamp":1625665242214,"source":{"type":"group","groupId":"Ca56f94637c","userId":"Ufc729a925b3abef"},
         "webhookEventId":"01FZ74ASS536FW97EX38NKCZQK","deliveryContext":{"isRedelivery":true}},
        {"type":"unfollow","timestamp":1625665242215,"source":{"type":"room","roomId":"Ra8dbf4673c"},
         "webhookEventId":"01FZ74B5Y0F4TNKA5SCAVKPEDM","deliveryContext":{"isRedelivery":false}},
        {"type":"module","timestamp":1625665242216,"webhookEventId":"01FZ74B5Y0F4TNKA5SCAVKPEDN"}]}"#;
    let kept = r#"{"destination":"xxxxxxxxxx"}"#;
    assert_eq!(
        rows(&Sender::line(), body),
        [
            [
                "01FZ74A0TDDPYRVKNK77XKC3ZR",
                "message",
                "U80696558e1aa831",
                kept
            ],
            ["01FZ74ASS536FW97EX38NKCZQK", "follow", "Ca56f94637c", kept],
            [
                "01FZ74B5Y0F4TNKA5SCAVKPEDM",
                "unfollow",
                "Ra8dbf4673c",
                kept
            ],
            ["01FZ74B5Y0F4TNKA5SCAVKPEDN", "module", "", kept],
        ]
    );
    // The URL is checked with a delivery without events.
    assert!(
        parts(
            &Sender::line(),
            r#"{"destination":"xxxxxxxxxx","events":[]}"#
        )
        .is_empty()
    );
}

#[test]
fn events_of_hubspot_are_items() {
    let body = r#"[
        {"objectId":1246965,"propertyName":"lifecyclestage","propertyValue":"subscriber","changeSource":"ACADEMY",
         "eventId":3816279340,"subscriptionId":25,"portalId":33,"appId":1160452,"occurredAt":1462216307945,
         "subscriptionType":"contact.propertyChange","attemptNumber":0},
        {"objectId":1246978,"changeSource":"IMPORT","eventId":3816279480,"subscriptionId":22,"portalId":33,"appId":1160452,
         "occurredAt":1462216307945,"subscriptionType":"contact.creation","attemptNumber":1}]"#;
    let hubspot = Sender::hubspot_v3("https://example.com/");
    let found = rows(&hubspot, body);
    assert_eq!(
        found,
        [
            [
                r#"["33","25","3816279340","1462216307945"]"#,
                "contact.propertyChange",
                "",
                ""
            ],
            [
                r#"["33","22","3816279480","1462216307945"]"#,
                "contact.creation",
                "",
                ""
            ],
        ]
    );
    // Another attempt is the same event.
    assert_eq!(
        rows(
            &hubspot,
            &body.replace(r#""attemptNumber":0"#, r#""attemptNumber":3"#)
        ),
        found
    );
}

#[cfg(feature = "public-keys")]
#[test]
fn events_of_sendgrid_are_items() {
    let body = "[\n  {\"email\":\"example@test.com\",\"timestamp\":1513299569,\"smtp-id\":\"<14c5d75ce93.dfd.64b469@ismtpd-555>\",\
        \"event\":\"processed\",\"category\":\"cat facts\",\"sg_event_id\":\"2FeCcG5VRWpck6mKqRgnDg==\",\
        \"sg_message_id\":\"14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0\"},\n  {\"email\":\"example@test.com\",\
        \"timestamp\":1513299569,\"event\":\"deferred\",\"category\":[\"cat facts\"],\"sg_event_id\":\"qK1MxfAaE_ukyyNsjxTpkw==\",\
        \"response\":\"400 try again later\",\"attempt\":\"5\"}\n]\r\n";
    assert_eq!(
        rows(&Sender::sendgrid(), body),
        [
            ["2FeCcG5VRWpck6mKqRgnDg==", "processed", "", ""],
            ["qK1MxfAaE_ukyyNsjxTpkw==", "deferred", "", ""],
        ]
    );
}
