"""The JSON object of a message, as every command prints it: with a body that people can read."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

_NAMES: Final = {"storedBody": "storedBodyBase64", "msgId": "messageId"}


def body_fields(body: bytes) -> dict[str, str]:
    """The body in an object: `body` is its text; a body that is not UTF-8 is `bodyBase64` instead."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": b64encode(body).decode()}


def body_of(fields: Mapping[str, Any]) -> bytes | None:
    """The body of such an object; None if it has none. Raises ValueError if it is not base64."""
    if isinstance(found := fields.get("body"), str):
        return found.encode()
    if isinstance(found := fields.get("bodyBase64"), str):
        return b64decode(found, validate=True)
    return None


def message_fields(manifest: Mapping[str, Any]) -> dict[str, object]:
    """The object of a message (`Message.to_manifest`)."""
    found: dict[str, object] = {}
    for name, value in manifest.items():
        if name == "body":
            found |= body_fields(b64decode(value))
        elif name != "uniqKey":  # RocketMQ's second name of the id
            found[_NAMES.get(name, name)] = value
    return found
