"""Hostile requests, made from one source of chance: by structure from the protobuf descriptors, and as bytes.

A message is *plausible* (its fields have values that a broker knows: see `Values`, which tests fill from the
live store) or *wild* (boundary numbers, unknown enum values, hostile texts, missing or doubled fields). Bytes
are a valid message's with damage, or mere noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.support.engine import NOW_MS
from trovemq_proto.errors import TroveError
from trovemq_proto.records.encode import encode_record

HOSTILE_TEXTS: Final = (
    "",
    " ",
    "\0",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a\\b",
    "a\r\nb",
    "\x1b[31mred",
    "\u202eright",
    "\U0001f600",
    "a b",
    "a\x01b\x02c",
    "a|b",
    "-x",
    "%RETRY%",
    "%RETRY%workers",
    "%DLQ%workers",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "TBW102",
    "CID_RMQ_SYS_x",
    "CON",
    "x" * 127,
    "x" * 128,
    "x" * 255,
    "x" * 256,
    "é" * 128,
    "y" * 10_000,
    "z" * 70_000,
)
NUMBERS_32: Final = (0, -1, 1, 2, 64, 1_024, 1_025, 65_536, (1 << 31) - 1, -(1 << 31))
NUMBERS_64: Final = (
    *NUMBERS_32,
    1 << 31,
    1 << 32,
    (1 << 53) + 1,
    NOW_MS,
    (1 << 62),
    (1 << 63) - 1,
    -(1 << 63),
)
TIMES_MS: Final = (NOW_MS, NOW_MS - 60_000, NOW_MS + 1_000, NOW_MS + 3_600_000)
SMALL: Final = (0, 1, 2, 3, 8, 16, 32)
LARGE_COUNTS: Final = (33, 129, 1_025, 1_100)
KEPT: Final = 64
"""Of each kind, the latest values are kept, up to this number."""

RARE: Final = frozenset(
    [
        "body_digest",
        "delivery_timestamp",
        "message_group",
        "lite_topic",
        "priority",
        "trace_context",
        "receipt_handle",
        "born_host",
        "orphaned_transaction_recovery_duration",
        "dead_letter_queue",
        "resource_namespace",
        "store_timestamp",
        "attempt_id",
        "leaving",
        "wait_ms",
        "auto_renew",
        "long_polling_timeout",
        "cursor",
        "scroll_id",
        "body_encoding",
        "message_type",
    ]
)
"""Fields that a plausible message seldom has: they send it elsewhere, or make the call wait."""

TEXT_KINDS: Final = {
    "receipt_handle": "handle",
    "recall_handle": "recall",
    "message_id": "id",
    "id": "id",
    "message": "id",
    "unique_key": "id",
    "transaction_id": "transaction",
    "cursor": "cursor",
    "scroll_id": "cursor",
    "nonce": "nonce",
    "client_id": "client",
    "expression": "expression",
    "subscription": "expression",
    "filter": "expression",
    "filter_type": "filter_type",
    "receipt": "receipt",
    "key": "key",
    "keys": "key",
    "message_key": "key",
    "tag": "tag",
    "tags": "tag",
    "directory": "directory",
    "address": "address",
    "host": "address",
    "born_host": "address",
    "message_type": "type",
    "message_group": "message_group",
    "topic": "topic",
    "topics": "topic",
    "group": "group",
    "cluster": "cluster",
    "checksum": "checksum",
}

Numbers = tuple[int, ...]


class Values:
    """Values that the services know, by kind, each with a few that do no harm to begin with."""

    def __init__(self) -> None:
        self.texts: dict[str, list[str]] = {
            "topic": ["orders"],
            "group": ["workers"],
            "handle": ["x"],
            "recall": ["x"],
            "id": ["0A0000010000000000000000"],
            "transaction": ["x"],
            "cursor": ["x"],
            "nonce": ["x"],
            "client": ["client-1", "client-2"],
            "expression": ["*", "a", "a || b", "x > 5 AND y = 'z'", "TRUE", "x IS NULL OR x BETWEEN 1 AND 2"],
            "key": ["k1", "k2"],
            "tag": ["a", "b"],
            "directory": [""],
            "address": ["10.0.0.1:8081"],
            "type": ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"],
            "message_group": ["g1", "g2"],
            "cluster": ["c"],
            "checksum": ["00000000"],
            "receipt": ["0.0.1.18bcfe5dd30.0.4a1bf138"],
            "filter_type": ["tag", "sql", ""],
            "": ["a", "b", "c"],
        }

    def learn(self, kind: str, text: str) -> None:
        known = self.texts[kind]
        known.append(text)
        if len(known) > KEPT:
            del known[0]


class MessageMaker:
    """Makes messages of any type."""

    def __init__(self, source: random.Random, values: Values, *, body_size: int = 8_192) -> None:
        self._source = source
        self._values = values
        self._body_size = body_size
        self._bodies = 0
        self._plans: dict[tuple[str, str], list[tuple[FieldDescriptor, Callable[[bool], Any]]]] = {}

    def begin(self, source: random.Random) -> None:
        """From now on the inputs depend on this source alone."""
        self._source = source
        self._bodies = 0
        self._plans.clear()

    # --- whole messages -------------------------------------------------------------------------------
    def message(self, descriptor: Descriptor, *, plausible: bool, around: str = "") -> Any:
        """`around` is the name of the field that it is for."""
        source, made = self._source, GetMessageClass(descriptor)()
        for field, value in self._plan(descriptor, around):
            if field.containing_oneof is not None and field.containing_oneof.fields[0] is not field:
                continue  # the first one of them stands for them all
            if plausible:
                skipped = source.random() < (0.9 if field.name in RARE else 0.06)
            else:
                skipped = source.random() < 0.4
            if not skipped:
                self._set(made, field, value, plausible)
        return made

    def changed(self, template: Any) -> Any:
        """A copy of a valid message in which up to one field is another."""
        made = type(template)()
        made.CopyFrom(template)
        if self._source.random() < 0.7:
            field, value = self._source.choice(self._plan(made.DESCRIPTOR, ""))
            made.ClearField(field.name)
            self._set(made, field, value, self._source.random() < 0.5)
        return made

    def _set(self, made: Any, field: FieldDescriptor, value: Callable[[bool], Any], plausible: bool) -> None:
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            field = self._source.choice(field.containing_oneof.fields)
            value = self._value_maker(field, made.DESCRIPTOR, "")
        if field.is_repeated:
            self._repeat(made, field, value, plausible)
        elif field.message_type is not None:
            getattr(made, field.name).CopyFrom(value(plausible))
        else:
            setattr(made, field.name, value(plausible))

    def _repeat(
        self, made: Any, field: FieldDescriptor, value: Callable[[bool], Any], plausible: bool
    ) -> None:
        source, target = self._source, getattr(made, field.name)
        count = source.choice((0, 1, 1, 1, 2, 3))
        if not plausible and source.random() < 0.02:
            count = source.choice(LARGE_COUNTS)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for _ in range(count):
                self._map_entry(target, field.message_type, plausible)
        elif count > 3:
            target.extend([value(False)] * count)
        else:
            target.extend(value(plausible) for _ in range(count))

    def _map_entry(self, target: Any, entry: Descriptor, plausible: bool) -> None:
        key = self.text("", plausible)
        kind = entry.fields_by_name["value"]
        if kind.message_type is not None:
            target[key].CopyFrom(self.message(kind.message_type, plausible=plausible))
        elif kind.type == FieldDescriptor.TYPE_STRING:
            target[key] = self.text("", plausible)
        else:
            target[key] = self._source.choice(SMALL)

    # --- fields ---------------------------------------------------------------------------------------
    def _plan(self, descriptor: Descriptor, around: str) -> list[tuple[FieldDescriptor, Any]]:
        key = (descriptor.full_name, around)
        if key not in self._plans:
            self._plans[key] = [
                (field, self._value_maker(field, descriptor, around)) for field in descriptor.fields
            ]
        return self._plans[key]

    def _value_maker(
        self, field: FieldDescriptor, descriptor: Descriptor, around: str
    ) -> Callable[[bool], Any]:
        types, source = FieldDescriptor, self._source
        if field.message_type is not None:
            inner, name = field.message_type, field.name
            return lambda plausible: self.message(inner, plausible=plausible, around=name)
        if field.type == types.TYPE_STRING:
            kind = self._kind(field.name, descriptor.name, around)
            return lambda plausible: self.text(kind, plausible)
        if field.type == types.TYPE_BYTES:
            return self.body
        if field.enum_type is not None:
            known = [value.number for value in field.enum_type.values]
            return lambda plausible: source.choice(known) if plausible else source.choice((*known, 99, -1))
        if field.type == types.TYPE_BOOL:
            return lambda plausible: source.random() < 0.3
        if field.type in (types.TYPE_DOUBLE, types.TYPE_FLOAT):
            return lambda plausible: source.choice(
                (1.0, 2.0) if plausible else (0.0, -1.0, 1e308 if field.type == types.TYPE_DOUBLE else 1e38,
                                              float("nan"), float("inf"))
            )  # fmt: skip
        plain, extreme = _numbers_of(field, descriptor)
        return lambda plausible: source.choice(plain if plausible else extreme)

    @staticmethod
    def _kind(name: str, owner: str, around: str) -> str:
        if owner == "Resource":
            return {"name": "group" if "group" in around else "topic"}.get(name, "")
        return TEXT_KINDS.get(name, "")

    def text(self, kind: str, plausible: bool) -> str:
        source = self._source
        if plausible or source.random() < 0.4:
            if kind in ("topic", "group") and source.random() < 0.05:
                return f"new{source.getrandbits(10)}"
            return source.choice(self._values.texts[kind])
        if source.random() < 0.2:
            return f"new{source.getrandbits(10)}"
        return source.choice(HOSTILE_TEXTS)

    def body(self, plausible: bool) -> bytes:
        """No two plausible bodies are the same."""
        source = self._source
        if plausible or source.random() < 0.5:
            self._bodies += 1
            return b"body %d" % self._bodies
        size = source.choice((0, 1, 2_000, self._body_size, self._body_size + 1, self._body_size * 2))
        return source.randbytes(8)[:size] * max(1, size // 8) if size else b""

    # --- record batches -------------------------------------------------------------------------------
    def append_frame(self, message: Any, plausible: bool) -> None:
        """Gives an AppendFrame records that belong to it, mostly; its topic and queue may be any."""
        source = self._source
        if plausible:
            message.frame_id = source.getrandbits(62)
        if not plausible and source.random() < 0.2:
            return
        batch = b"".join(
            self._record(message, plausible)
            for _ in range(source.choice((1, 1, 1, 2, 5, 0) if not plausible else (1, 2)))
        )
        message.records = batch if plausible or source.random() < 0.5 else damaged(batch, source)

    def _record(self, frame: Any, plausible: bool) -> bytes:
        source = self._source
        fields: dict[str, Any] = {
            "queue_id": frame.queue_id,
            "properties": {
                "UNIQ_KEY": self.text("id", plausible),
                "KEYS": self.text("key", plausible),
                "TAGS": self.text("tag", plausible),
            },
            "born_timestamp": NOW_MS,
            "append_property_crc": True,
        }
        topic = frame.topic
        if not plausible:
            topic = source.choice((topic, topic, topic, "payments"))
            wild = source.choice(("flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", ""))
            if wild:
                fields[wild] = source.choice((*NUMBERS_32, 0x101, 0x201, 0x301))  # compressed, they say
            if source.random() < 0.2:
                fields["properties"] = source.randbytes(source.choice((1, 30, 300, 32_000)))
            if source.random() < 0.2:
                fields["properties"] = {
                    "DELAY": "3",
                    "TRAN_MSG": "true",
                    "TIMER_DELIVER_MS": "99999999999999",
                }
            fields["append_property_crc"] = source.random() < 0.8
        try:
            return encode_record(topic, self.body(plausible), **fields)
        except (TroveError, ValueError, OverflowError):
            return source.randbytes(120)  # cannot even be encoded
        except Exception as error:
            if type(error).__name__ == "error":  # struct's, for a number out of its range
                return source.randbytes(120)
            raise


_UNSIGNED: Final = {
    FieldDescriptor.TYPE_UINT32: (1 << 32) - 1,
    FieldDescriptor.TYPE_FIXED32: (1 << 32) - 1,
    FieldDescriptor.TYPE_UINT64: (1 << 64) - 1,
    FieldDescriptor.TYPE_FIXED64: (1 << 64) - 1,
}
"""The highest number by the type of an unsigned field."""


def _numbers_of(field: FieldDescriptor, descriptor: Descriptor) -> tuple[Numbers, Numbers]:
    """Plausible and extreme numbers for a field; of an unsigned one those that it can have, and its
    highest."""
    plausible, extreme = _signed_numbers_of(field, descriptor)
    highest = _UNSIGNED.get(field.type)
    if highest is None:
        return plausible, extreme
    return plausible, (*(number for number in extreme if 0 <= number <= highest), highest)


def _signed_numbers_of(field: FieldDescriptor, descriptor: Descriptor) -> tuple[Numbers, Numbers]:
    types, name = FieldDescriptor, field.name
    if field.type in (types.TYPE_INT32, types.TYPE_SINT32, types.TYPE_SFIXED32):
        extreme: Numbers = NUMBERS_32
    else:
        extreme = NUMBERS_64
    if descriptor.full_name == "google.protobuf.Timestamp":
        return ((NOW_MS // 1_000, NOW_MS // 1_000 + 2), extreme) if name == "seconds" else ((0,), extreme)
    if descriptor.full_name == "google.protobuf.Duration":
        return ((15, 30, 1), (*extreme, 20, 43_200)) if name == "seconds" else ((0,), extreme)
    if name in ("queue_id", "id", "queue_ids"):
        return (0, 1, 2, 3), extreme
    if name == "queue_count":
        return (0, 1, 4, 8), (0, -1, 1, 64, 1_025, 1 << 30, extreme[-1])
    if name == "bytes_per_second":
        return (0, 1 << 20, 1 << 30), (-1, 1_023, 1 << 16, 1 << 40, (1 << 40) + 1, *extreme[-2:])
    if "timestamp" in name or name in ("begin", "end"):
        return (0, *TIMES_MS), extreme
    if name.endswith("_ms"):
        return (0, 10, 1_000), extreme
    return SMALL, extreme


def damaged(data: bytes, source: random.Random) -> bytes:
    """The bytes with one to four damages: a flipped bit, a cut, something doubled or inserted."""
    result = bytearray(data or b"\x0a")
    for _ in range(source.choice((1, 1, 2, 4))):
        at = source.randrange(len(result)) if result else 0
        match source.randrange(6):
            case 0 if result:
                result[at] ^= 1 << source.randrange(8)
            case 1:
                del result[at:]
            case 2:
                result[at:at] = result[at : at + source.randrange(1, 40)]
            case 3:
                result[at:at] = source.randbytes(source.randrange(1, 8))
            case 4:
                result[at : at + 1] = b"\xff" * source.randrange(1, 11)  # numbers that do not end
            case _:
                del result[at : at + source.randrange(1, 10)]
    return bytes(result)


def noise(source: random.Random) -> bytes:
    """Bytes of no meaning."""
    return source.randbytes(source.choice((0, 1, 2, 5, 20, 100, 1_000)))


def request_bytes(
    maker: MessageMaker,
    source: random.Random,
    descriptor: Descriptor,
    recent: list[bytes],
    templates: Sequence[Any] = (),
) -> bytes:
    """One input. `recent` were made last (damage is done to them), `templates` are valid now."""
    chance = source.random()
    if chance < 0.12 and recent:
        return damaged(source.choice(recent), source)
    if chance < 0.16:
        return noise(source)
    plausible = chance < 0.6
    if chance > 0.7 and templates:
        message = maker.changed(source.choice(templates))
    else:
        message = maker.message(descriptor, plausible=plausible)
    if descriptor.name == "AppendFrame":
        maker.append_frame(message, plausible)
    data: bytes = message.SerializeToString()
    recent.append(data)
    if len(recent) > 16:
        del recent[0]
    return data
