"""A body that does not inflate costs that body, and no other message of the answer."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq._common.pulled import pulled_message
from trovemq._lookup.merge import decoded
from trovemq._verify.checking import readable
from trovemq.cli.render import message_line
from trovemq.fetched import FetchedBatch
from trovemq_proto.records import encode_record
from trovemq_proto.v1 import query_pb2

BODIES = [b"first", b"no stream", zlib.compress(b"last")]


def records(count: int = 3) -> list[bytes]:
    """The second one says that it is compressed, and is not."""
    flags = [0, 1, 1]
    return [
        encode_record(
            "orders", BODIES[i], sys_flag=flags[i], queue_offset=i, physical_offset=i, store_timestamp=i
        )
        for i in range(count)
    ]


@pytest.mark.asyncio
async def test_a_query_failed_for_one_body_that_does_not_inflate(
    nameserver: FakeServer, broker: FakeServer, other: FakeServer, connect: Connect
) -> None:
    page = query_pb2.QueryPage(records=b"".join(reversed(records())), last=True, complete=True)
    broker.on_query = lambda _request: [page]
    other.on_query = lambda _request: [query_pb2.QueryPage(last=True, complete=True)]
    client = await connect(nameserver)
    answer = await client.query("orders", "k", max=10)
    assert [message.body for message in answer.messages] == [b"last", b"", b"first"]
    assert answer.complete
    assert [bool(message.body_error) for message in answer.messages] == [False, True, False]
    (note,) = answer.notes
    assert "orders, queue 0, offset 1" in note
    assert "does not inflate" in note


@pytest.mark.parametrize("copies", [1, 4])
def test_a_pull_stopped_at_a_body_that_does_not_inflate(copies: int) -> None:
    batch = FetchedBatch(b"".join(records() * copies), 3 * copies, 0, 3 * copies)
    assert [message.body for message in batch.messages()] == [b"first", b"", b"last"] * copies
    offsets = np.arange(10, 10 + 3 * copies)
    numbered = FetchedBatch(batch.data, 20, 0, 20, offsets)
    found = list(numbered.messages())
    assert [message.queue_offset for message in found] == offsets.tolist()
    assert found[1].body_error
    assert found[1].stored_body == b"no stream"
    assert found[1].to_manifest()["bodyError"] == found[1].body_error
    assert found[1].body_error in message_line(found[1]).plain
    assert pulled_message(found[1], "b").body_error == found[1].body_error


def test_a_look_up_by_id_failed_for_one_body_that_does_not_inflate() -> None:
    assert [m.body for m in decoded(b"".join(records()), None)] == [b"first", b"", b"last"]
    assert [m.body for m in decoded(b"".join(records()), range(3))] == [b"first", b"", b"last"]


def test_verify_counts_the_message_as_one_that_cannot_be_read() -> None:
    messages, unreadable = readable(FetchedBatch(b"".join(records()), 3, 0, 3), 0)
    assert sorted(messages) == [0, 2]
    assert unreadable == {1}
