"""A kombu message as a record: its body is JSON; key, time and priority are those of the record."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from trovemq.received import ReceivedFields

Payload = dict[str, Any]
JSON: Final = "application/json"
KEY_SIZE_MAX: Final = 128
PRIORITY_MAX: Final = 9


def body_of(payload: Payload) -> bytes:
    """The record's body. Raises TypeError if a header is not JSON."""
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def payload_of(message: ReceivedFields) -> Payload:
    """The kombu message in a record. Raises ValueError if the record has none that a worker can read: of any
    other one the worker would end, and after it each worker that receives it again."""
    try:
        payload: Payload = json.loads(message.body)
        readable = _is_payload(payload)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not readable:
        raise ValueError("the record is not a message of kombu, or its body is not a task of Celery")
    if message.attempt > 1:
        payload["redelivered"] = True
        payload["properties"].setdefault("delivery_info", {})["redelivered"] = True
    return payload


def _is_payload(value: Any) -> bool:
    """Whether it has kombu's members, a body that can be decoded, and that of a task if it is one. Raises
    ValueError for bad base64 and JSON."""
    if not isinstance(value, dict) or not isinstance(value.get("properties"), dict):
        return False
    properties, headers, body = value["properties"], value.get("headers") or {}, value.get("body")
    encoding = properties.get("body_encoding") or "utf-8"
    texts = body, value.get("content-type") or "", value.get("content-encoding") or ""
    mappings = headers, properties.get("delivery_info") or {}
    if not all(isinstance(one, str) for one in texts) or not all(isinstance(one, dict) for one in mappings):
        return False
    if encoding not in ("utf-8", "base64"):
        return False
    read = b64decode(str(body), validate=True) if encoding == "base64" else str(body)
    if "task" not in headers:
        return True
    return bool(body) and (value.get("content-type") != JSON or _is_task(headers, read))


def _is_task(headers: Mapping[str, Any], body: str | bytes) -> bool:
    """Whether Celery can unpack it: it does so outside of the task. A compressed body is Celery's matter."""
    limits = headers.get("timelimit") or (None, None)
    if not isinstance(limits, (list, tuple)) or len(limits) != 2:
        return False
    if headers.get("compression"):
        return True
    read = json.loads(body)
    if isinstance(read, dict):
        return "args" in read  # that of the older protocol
    if not isinstance(read, list) or len(read) != 3 or not isinstance(headers.get("id"), str):
        return False
    args, kwargs, embed = read
    return isinstance(args, list) and isinstance(kwargs, dict) and isinstance(embed, (dict, type(None)))


def arguments_of(payload: Payload, now: datetime) -> dict[str, Any]:
    """Further arguments of `Client.send`: the task's id as key, its name as property, its time and priority.

    `now`: with a time zone; a task that is due is sent without a time.
    """
    headers, properties = payload.get("headers") or {}, payload["properties"]
    task, key = headers.get("task"), properties.get("correlation_id") or headers.get("id")
    due = due_at(headers)
    return {
        "keys": [key] if isinstance(key, str) and is_key(key) else None,
        "properties": {"task": task} if isinstance(task, str) and task else None,
        "priority": priority_of(properties),
        "deliver_at": due if due is not None and due > now else None,
    }


def is_key(text: str) -> bool:
    """Whether a record can carry it as key: without spaces and control characters."""
    return 0 < len(text) <= KEY_SIZE_MAX and text.isprintable() and not any(map(str.isspace, text))


def due_at(headers: Mapping[str, Any]) -> datetime | None:
    """The time of a task (`eta`); None if it has none, or one that is not a time: Celery decides then. A time
    without a zone is in UTC."""
    text = headers.get("eta")
    if not isinstance(text, str):
        return None
    try:
        due = datetime.fromisoformat(text)
    except ValueError:
        return None
    return due if due.tzinfo is not None else due.replace(tzinfo=UTC)


def priority_of(properties: Mapping[str, Any]) -> int:
    """0 to 9, and 9 first, as in RabbitMQ; 0 without one."""
    try:
        return max(0, min(int(properties.get("priority") or 0), PRIORITY_MAX))
    except (TypeError, ValueError):
        return 0


def is_expired(payload: Payload, message: ReceivedFields, now_ms: int) -> bool:
    """Whether the message's `expiration` (a text of milliseconds since it was sent) is over."""
    try:
        return now_ms >= message.born_timestamp + int(payload["properties"]["expiration"])
    except (KeyError, TypeError, ValueError):
        return False
