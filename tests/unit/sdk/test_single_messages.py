"""A batch of single messages: its frame is that of its records, encoded one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_loop
from tests.unit.records import reference
from trovemq._net.routes import Slot
from trovemq._produce.outgoing import Batch, SingleMessages
from trovemq._produce.property_block import BARE_BLOCK_SIZE, property_block
from trovemq._produce.queue_routes import QueueRoute, RecordForm
from trovemq._produce.sequences import SequenceAssigner
from trovemq.receipts import AppendOutcome, SendReceipt
from trovemq_proto.records import encode_record, parse_properties
from trovemq_proto.records.layout import CRC_PROPERTY_EMPTY
from trovemq_proto.v1 import message_pb2

SLOT = Slot("b", 3)
FORM = st.builds(RecordForm, st.booleans(), st.booleans(), st.booleans())
KINDS = ["bare", "with a tag", "with its key", "cancelled", "cancelled with a tag"]


class Owner:
    def __init__(self) -> None:
        self.done: list[Batch] = []
        self.taken: list[Batch] = []
        self.batch_taken: Callable[[Batch], None] = self.taken.append

    def batch_done(self, batch: Batch) -> None:
        self.done.append(batch)

    def batch_is_late(self, batch: Batch) -> bool:
        raise AssertionError(batch)

    def batch_refused(self, batch: Batch, outcome: AppendOutcome) -> None:
        raise AssertionError(outcome)

    def batch_failed(self, batch: Batch, error: Exception, in_doubt: bool) -> None:
        raise AssertionError(error)


def batch_of(kinds: Sequence[str], form: RecordForm, owner: Owner) -> tuple[SingleMessages, list[Any]]:
    batch = SingleMessages("orders", owner, SLOT, 9.0)
    broker: Any = SimpleNamespace(name="b")
    stream: Any = None
    batch.route = QueueRoute(1, SLOT, broker, stream, form)
    waiters = []
    for number, kind in enumerate(kinds):
        waiter: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        key, block = "", b""
        if kind.endswith("a tag"):
            key, block = property_block(tag="paid")
        elif kind == "with its key":
            key, block = property_block(message_id=f"own-{number}")
        if kind.startswith("cancelled"):
            waiter.cancel()
        batch.add(b"body %d" % number, block, key, waiter, 100 + number)
        waiters.append(waiter)
    return batch, waiters


@given(st.lists(st.sampled_from(KINDS), max_size=6), FORM, st.booleans())
def test_its_frame_has_the_records_of_those_who_wait(kinds: list[str], form: RecordForm, many: bool) -> None:
    async def scene() -> None:
        owner = Owner()
        batch, waiters = batch_of(kinds, form, owner)
        if many:
            batch.sequence_assigner = SequenceAssigner("p")
            batch.sequence_assigner.begin("b", 7)
        data = batch.take(5)
        left = [number for number, kind in enumerate(kinds) if not kind.startswith("cancelled")]
        assert owner.taken == [batch]
        if not left:
            assert data is None
            assert owner.done == [batch]
            return
        assert data is not None
        frame = message_pb2.AppendFrame.FromString(data)
        assert (frame.frame_id, frame.topic, frame.queue_id, frame.one_way) == (5, "orders", 3, False)
        records = reference.split(frame.records)
        assert records is not None
        assert batch.sizes == [record.total_size for record in records]
        assert batch.lone == (len(left) == 1)
        keys = []
        for number, record in zip(left, records, strict=True):
            block = record.properties.removesuffix(CRC_PROPERTY_EMPTY)
            own, kind = parse_properties(block), kinds[number]
            assert own.pop("TROVEMQ_SEQUENCE", None) == (f"{7 + left.index(number)}" if many else None)
            assert own.pop("TROVEMQ_PRODUCER", None) == ("p" if many else None)
            assert own.pop("TAGS", None) == ("paid" if kind == "with a tag" else None)
            keys.append(own.pop("UNIQ_KEY"))
            assert own == {}
            assert keys[-1] == f"own-{number}" if kind == "with its key" else len(keys[-1]) == 34
            end = record.position + record.total_size
            assert frame.records[record.position : end] == encode_record(
                "orders",
                b"body %d" % number,
                queue_id=3,
                properties=block,
                born_timestamp=record.born_timestamp,
                born_host=bytes(20 if form.born_host_ipv6 else 8),
                store_host=bytes(20 if form.store_host_ipv6 else 8),
                append_property_crc=form.append_property_crc,
            )
        assert len(set(keys)) == len(keys)
        assert batch.take(5) == data, "the same when it is sent again"
        host = bytes(20 if form.store_host_ipv6 else 8)
        batch.answered(AppendOutcome(5, "PUT_OK", None, 20, 1000, len(left), 1, "disk", host, "b"))
        assert owner.done == [batch]
        got = [waiters[number].result() for number in left]
        assert [receipt.message_id for receipt in got] == keys
        assert [receipt.queue_offset for receipt in got] == list(range(20, 20 + len(left)))
        ends = [1000 + sum(batch.sizes[:index]) for index in range(len(left))]
        assert [receipt.physical_offset for receipt in got] == ends
        assert all(waiters[n].cancelled() for n, kind in enumerate(kinds) if kind.startswith("cancelled"))

    fake_loop.run(scene())


def test_the_size_of_the_properties_of_a_bare_message() -> None:
    _, block = property_block()
    assert len(block) == BARE_BLOCK_SIZE
    assert list(parse_properties(block)) == ["UNIQ_KEY"]
