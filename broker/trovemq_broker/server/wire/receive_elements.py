"""The elements of a ReceiveMessage stream, written by hand for common messages in half the time of protobuf.

The fast writer takes a record that has no flags (so its hosts are IPv4, and its body is not compressed), and
no properties but those that a client sends with a message that has one key at most. `received` writes any
other; of one that the fast writer takes it makes the same bytes.

| bytes | field of ReceiveMessageResponse |
| --- | --- |
| 0x12, size, Message: | message |
| 0x0a, size, Resource | topic |
| 0x1a, size, SystemProperties | system_properties, see fast_element() |
| 0x22, size, bytes | body; left out if it is empty |
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import md5
from struct import Struct
from typing import Final

from trovemq_broker.groups.delivery.request import Delivered
from trovemq_proto.records import format_host
from trovemq_proto.records.layout import (
    BODY_AT,
    BODY_SIZE_AT,
    MAGIC_AT,
    MAGIC_V1_BYTES,
    RECONSUME_TIMES_AT,
    SYS_FLAG_AT,
)
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.varints import write_varint

SIZE_MAX: Final = 0x7F
"""Bytes of a text whose size is one byte."""

_HEADER: Final = Struct(f">{SYS_FLAG_AT}xiq8sq8s{BODY_SIZE_AT - RECONSUME_TIMES_AT}xi")
"""Flags, born time and host, store time and host, and the body's size, of a record with IPv4 hosts."""
_PROPERTIES: Final = re.compile(
    rb"UNIQ_KEY\x01([ -~]{1,127})\x02"
    rb"(?:KEYS\x01([!-~]{1,127})\x02)?"
    rb"(?:TAGS\x01([ -~]{1,127})\x02)?"
    rb"(?:__BORNHOST\x01([ -~]{1,127})\x02)?"
    rb"(?:__CRC32#\x01[ -~]{1,127}\x02)?"
)
"""The form in which sends store them: id, one key, tag, the sender's host. The store
adds its CRC."""
_SYSTEM: Final = (
    b"%b"  # tag and keys
    b"\x1a%c%b"  # message_id
    b"\x22\x24\x08\x02\x12\x20%b"  # body_digest: MD5, and its text
    b"\x28\x01\x30\x01"  # body_encoding IDENTITY, message_type NORMAL
    b"\x3a%b"  # born_timestamp
    b"\x42%b"  # born_host
    b"\x4a%b"  # store_timestamp
    b"\x52%b"  # store_host
    b"\x62%c%b"  # receipt_handle
    b"%b\x70%b"  # queue_id, left out if it is 0; queue_offset
    b"\x80\x01%b"  # delivery_attempt
)


def topic_field(topic: v2.Resource) -> bytes:
    """The topic of all messages of a stream, as their field."""
    data = topic.SerializeToString()
    return b"\x0a%b%b" % (write_varint(len(data)), data)


def fast_element(delivered: Delivered, topic: bytes) -> bytes | None:
    """The element, serialised; None if the message has another form. `topic`: the result of topic_field()."""
    record, _, queue_id, queue_offset, attempt, handle, _ = delivered
    data = bytes(record)
    sys_flag, born_ms, born_host, store_ms, store_host, body_size = _HEADER.unpack_from(data)
    if sys_flag or born_ms < 0 or store_ms < 0 or len(handle) > SIZE_MAX:
        return None
    topic_at = BODY_AT + body_size
    if data[MAGIC_AT : MAGIC_AT + 4] == MAGIC_V1_BYTES:
        properties_at = topic_at + 3 + data[topic_at]
    else:
        properties_at = topic_at + 4 + (data[topic_at] << 8 | data[topic_at + 1])
    properties = _PROPERTIES.fullmatch(data, properties_at)
    if properties is None:
        return None
    message_id, key, tag, host = properties.groups()
    names = b"" if tag is None else b"\x0a%c%b" % (len(tag), tag)
    if key is not None:
        names = b"%b\x12%c%b" % (names, len(key), key)
    body = data[BODY_AT:topic_at]
    system = _SYSTEM % (
        names,
        len(message_id),
        message_id,
        md5(body, usedforsecurity=False).hexdigest().upper().encode(),
        _time(born_ms),
        _host(born_host) if host is None else b"%c%b" % (len(host), host),
        _time(store_ms),
        _host(store_host),
        len(handle),
        handle.encode(),
        _place(queue_id),
        write_varint(queue_offset),
        write_varint(attempt),
    )
    message = b"%b\x1a%b%b%b%b" % (
        topic,
        write_varint(len(system)),
        system,
        b"\x22" + write_varint(body_size) if body_size else b"",
        body,
    )
    return b"\x12%b%b" % (write_varint(len(message)), message)


@lru_cache(maxsize=1_024)
def _time(epoch_ms: int) -> bytes:
    """A Timestamp with its size before it."""
    seconds, ms = divmod(epoch_ms, 1_000)
    data = b"\x08" + write_varint(seconds) if seconds else b""
    if ms:
        data += b"\x10" + write_varint(ms * 1_000_000)
    return write_varint(len(data)) + data


@lru_cache(maxsize=1_024)
def _host(host: bytes) -> bytes:
    """A host's text with its size before it."""
    text = format_host(host).encode()
    return write_varint(len(text)) + text


@lru_cache(maxsize=1_024)
def _place(queue_id: int) -> bytes:
    """queue_id, left out if it is 0."""
    return b"\x68" + write_varint(queue_id) if queue_id else b""
