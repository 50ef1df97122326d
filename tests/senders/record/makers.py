"""Says whether a library accepts a delivery: `makers.py MODULE` with headers, body and secret as JSON on standard input."""

import asyncio
import json
import sys


def pyairtable(headers, body, secret):
    from pyairtable.models.webhook import WebhookNotification

    try:
        WebhookNotification.from_request(body, headers["x-airtable-content-mac"], secret)
    except (KeyError, ValueError):
        return False
    return True


def huggingface_hub(headers, body, secret):
    from fastapi import Request
    from huggingface_hub._webhooks_server import _load_fastapi, _wrap_webhook_to_check_secret

    _load_fastapi()

    async def accepted(request: Request):
        return True

    function = _wrap_webhook_to_check_secret(accepted, webhook_secret=secret)
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": raw})
    return asyncio.run(function(request=request)) is True


asked = json.load(sys.stdin)
print(json.dumps(globals()[sys.argv[1]](**asked)))
