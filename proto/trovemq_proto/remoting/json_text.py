"""JSON as RocketMQ's programs write and read it in bodies: compact, and with objects as keys.

A map whose keys are queues is written {{"brokerName":"b","queueId":0,"topic":"t"}:value,...}, which is not
JSON. Clients of 5.4.0 do not read a quoted key there; those of 4.9.8 read both. Go's client reads
`brokerAddrs` by hand and does not trim blanks, so that none may be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from trovemq_proto.positions import QueueId

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def json_text(value: object) -> bytes:
    """Compact, members in alphabetical order, as fastjson writes them."""
    return _ENCODER.encode(value)


def queue_key(broker: str, topic: str, queue_id: QueueId) -> dict[str, object]:
    return {"brokerName": broker, "queueId": queue_id, "topic": topic}


def queue_map(entries: Iterable[tuple[Mapping[str, object], object]]) -> msgspec.Raw:
    """A map by queues, to be put into json_text(): its keys are objects."""
    written = (json_text(key) + b":" + json_text(value) for key, value in entries)
    return msgspec.Raw(b"{" + b",".join(written) + b"}")
