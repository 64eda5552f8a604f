"""Elements of a ReceiveMessage stream that are written by hand: the bytes are those of protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.memory_broker import message
from tests.support.trials import SOAK
from trovemq_broker.groups.delivery.request import Delivered
from trovemq_broker.server.wire.receive_elements import fast_element, topic_field
from trovemq_broker.server.wire.rocketmq_messages import received
from trovemq_broker.server.wire.send_requests import SendLimits, read_request
from trovemq_proto.positions import EpochMs, PhysicalOffset, QueueId, QueueOffset
from trovemq_proto.records import encode_record
from trovemq_proto.records.layout import MAGIC_V1, MAGIC_V2
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2
from trovemq_store.engine.steps import finished

PIECES = st.one_of(
    st.sampled_from(
        [
            "UNIQ_KEY\x0101AA\x02",
            "KEYS\x01k\x02",
            "TAGS\x01t\x02",
            "__BORNHOST\x01laptop\x02",
            "__CRC32#\x010123456789\x02",
        ]
    ),
    st.sampled_from(
        ["UNIQ_KEY\x01\x02", "KEYS\x01a b\x02", "TAGS\x01\xe9\x02", "own\x011\x02", "DELAY\x013\x02"]
    ),
    st.sampled_from(
        ["\x02", "TAGS", "UNIQ_KEY\x01a\x01b\x02", "KEYS\x01" + "k" * 128 + "\x02", "KEYS\x01\x1c\x02"]
    ),
)
IDS = "UNIQ_KEY\x0101AA\x02"
BLOCKS = st.one_of(
    st.lists(PIECES, max_size=5).map("".join),
    st.lists(PIECES, max_size=3).map(lambda pieces: IDS + "".join(pieces)),
    st.text(max_size=40),
).map(str.encode)
TIMES = st.one_of(
    st.sampled_from([0, 999, 1_000, 1_700_000_000_123, -1]), st.integers(-(1 << 40), (1 << 62) - 1)
)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


def one(record: bytes, topic: str, queue_id: int, queue_offset: int, attempt: int, handle: str) -> Delivered:
    return Delivered(
        memoryview(record),
        topic,
        QueueId(queue_id),
        QueueOffset(queue_offset),
        attempt,
        handle,
        EpochMs(0),
    )


@given(
    body=st.sampled_from([b"", b"x", bytes(127), bytes(128), bytes(20_000)]),
    block=BLOCKS,
    born_ms=TIMES,
    store_ms=TIMES,
    born_host=HOSTS,
    store_host=HOSTS,
    sys_flag=st.sampled_from([0, 0, 0, 1, 0x8]),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
    topic=st.sampled_from(["t", "t" * 127]),
    queue_id=st.sampled_from([0, 1, 127, 128, (1 << 31) - 1]),
    queue_offset=st.sampled_from([0, 127, 128, 1 << 40]),
    attempt=st.sampled_from([1, 127, 128]),
    handle=st.sampled_from(["H", "h" * 127, "h" * 128]),
    namespace=st.sampled_from(["", "ns"]),
)
@settings(max_examples=300 if SOAK else 100, deadline=None)
def test_an_element_has_the_bytes_of_protobuf(
    body: bytes, block: bytes, topic: str, namespace: str, magic: int, **fields: Any
) -> None:
    place = [fields.pop(name) for name in ("queue_id", "queue_offset", "attempt", "handle")]
    record = encode_record(
        topic,
        body,
        queue_id=1,
        properties=block,
        queue_offset=7,
        physical_offset=PhysicalOffset(4_096),
        born_timestamp=fields.pop("born_ms"),
        store_timestamp=fields.pop("store_ms"),
        magic=magic,
        **fields,
    )
    delivered = one(record, topic, *place)
    name = v2.Resource(resource_namespace=namespace, name=topic) if namespace else None
    written = fast_element(delivered, topic_field(name or v2.Resource(name=topic)))
    assert written in (None, received(delivered, name))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tag": "t"},
        {"keys": ["k"]},
        {"tag": "t", "keys": ["k"], "born_host": "laptop"},
        {"born_host": "laptop"},
    ],
)
def test_the_messages_of_official_clients_are_usual(fields: dict[str, Any]) -> None:
    sent = message(b"body", message_id="01AA", **fields)
    request = service_pb2.SendMessageRequest(messages=[sent])
    (stored,) = finished(read_request(request, SendLimits(100, EpochMs(0)))).messages
    record = encode_record(
        "orders",
        sent.body,
        properties=stored.properties,
        append_property_crc=True,
        born_timestamp=1,
        store_timestamp=2,
    )
    delivered = one(record, "orders", 3, 12, 1, "0.3.1.18b.0.1.0123abcd")
    written = fast_element(delivered, topic_field(v2.Resource(name="orders")))
    assert written == received(delivered)
