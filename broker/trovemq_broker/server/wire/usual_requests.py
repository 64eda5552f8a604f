"""SendMessage requests of the usual form, read by hand: half the time of protobuf's parser and getters.

Protobuf writes a message in this form if it has these fields, as the official clients' messages do:

| bytes | field |
| --- | --- |
| 0x0a, size, Message: | messages: one |
| 0x0a, size, 0x12, size, text | topic, without a namespace |
| 0x1a, size, SystemProperties | see _REQUEST |
| 0x22, size, bytes | body, not empty |

All texts are ASCII and pass the checks of send_checks.py. A request is read only if every size in it is that
of the bytes that were found: so no other reading of its bytes is possible. A message id has letters, digits,
`-` and `_` only: with more, the search for its end would take long in a hostile request.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp

from trovemq_broker.server.wire.rocketmq_messages import timestamp_ms
from trovemq_broker.server.wire.send_checks import TEXTS_SIZE_MAX
from trovemq_proto.positions import EpochMs
from trovemq_proto.varints import write_varint

_REQUEST: Final = re.compile(
    rb"\x0a([\x80-\xff]{0,3}[\0-\x7f])"  # the message's size
    rb"\x0a(.)\x12(.)([!-~]{1,125})"  # topic
    rb"\x1a([\x80-\xff]?[\0-\x7f])"  # the size of the system properties
    rb"((?:\x0a(.)([!-{}~]{1,127}))?"  # tag
    rb"(?:\x12(.)([!-{}~]{1,127}))?"  # keys: one
    rb"\x1a(.)([0-9A-Za-z_-]{1,127})"  # message_id
    rb"(?:\x28\x01)?(?:\x30\x01)?"  # body_encoding IDENTITY, message_type NORMAL
    rb"\x3a(.)((?:\x08[\x80-\xff]{0,4}[\0-\x7f])?(?:\x10[\x80-\xff]{0,4}[\0-\x7f])?)"  # born_timestamp
    rb"(?:\x42(.)([ !#-~]{1,127}))?"  # born_host; with a `"`, it would be searched for in the body, too
    rb"(?:\x68[\x80-\xff]{0,4}[\0-\x7f])?)"  # queue_id, which no send reads
    rb"\x22([\x80-\xff]{0,3}[\0-\x7f])",  # the body's size
    re.DOTALL,
)
_size: Final = lru_cache(maxsize=4_096)(write_varint)


class Usual(NamedTuple):
    """A usual message. block: its encoded properties, as messages.usual_properties() makes them."""

    topic: str
    message_id: str
    block: bytes
    body: bytes
    born_ms: EpochMs
    """As the client states it."""


def read_usual(data: bytes) -> Usual | None:
    """None if it has another form."""
    found = _REQUEST.match(data)
    if found is None:
        return None
    (
        size, resource_size, name_size, name, system_size, system, tag_size, tag, key_size, key,
        id_size, message_id, time_size, time, host_size, host, body_size,
    ) = found.groups()  # fmt: skip
    body_at = found.end()
    texts_size = len(message_id)
    block = b"UNIQ_KEY\x01%b\x02" % message_id
    if key is not None:
        texts_size += len(key)
        block = b"%bKEYS\x01%b\x02" % (block, key)
        if key_size[0] != len(key):
            return None
    if tag is not None:
        texts_size += len(tag)
        block = b"%bTAGS\x01%b\x02" % (block, tag)
        if tag_size[0] != len(tag):
            return None
    if host is not None:
        block = b"%b__BORNHOST\x01%b\x02" % (block, host)
        if host_size[0] != len(host):
            return None
    name_length = len(name)
    if (
        name_size[0] != name_length
        or resource_size[0] != name_length + 2
        or id_size[0] != len(message_id)
        or time_size[0] != len(time)
        or system_size != _size(len(system))
        or body_size != _size(len(data) - body_at)
        or size != _size(len(data) - 1 - len(size))
        or body_at == len(data)
        or texts_size > TEXTS_SIZE_MAX
    ):
        return None
    return Usual(name.decode(), message_id.decode(), block, data[body_at:], _time_ms(time))


@lru_cache(maxsize=1_024)
def _time_ms(time: bytes) -> EpochMs:
    """Of the bytes of a Timestamp."""
    return timestamp_ms(Timestamp.FromString(time))
