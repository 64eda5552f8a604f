"""Pages that the disk does not give: their messages are skipped and counted, all others are delivered."""

from __future__ import annotations

import errno

import pytest

from tests.support.delivery import LEASE_MS, ROOMY, Engine, bodies
from tests.support.engine import NOW_MS
from tests.unit.timers.engine import Broker
from trovemq_broker.consumer_settings import ConsumerSettings
from trovemq_broker.filters.filter import parse_filter
from trovemq_broker.timers.wheel_records import WHEEL_TOPIC
from trovemq_proto.errors import TroveError
from trovemq_store.files.faulty import FaultyFileSystem
from trovemq_store.files.files import StorageError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.subscription_groups import SubscriptionGroup

COUNT = 30
UNIT_SIZE = 20
BAD = range(5, 8)
LOG = "commitlog/00000000000000000000"


def queue_path(topic: str = "orders") -> str:
    return f"consumequeue/{topic}/0/00000000000000000000"


def filled(*, orderly: bool = False) -> tuple[FaultyFileSystem, Engine, list[str]]:
    """The engine, and the bodies of the messages outside BAD."""
    files = FaultyFileSystem(MemoryFileSystem())
    engine = Engine(files=files)  # type: ignore[arg-type]
    engine.groups.create(SubscriptionGroup("workers", orderly=orderly))
    for number in range(COUNT):
        engine.send(f"m{number}", tag="t", key=f"k{number}" if orderly else "")
    return files, engine, [f"m{number}" for number in range(COUNT) if number not in BAD]


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("expression", ["*", "t"])
def test_an_unreadable_part_of_a_queue_made_every_receive_fail(orderly: bool, expression: str) -> None:
    files, engine, good = filled(orderly=orderly)
    files.unreadable[queue_path()] = (BAD.start * UNIT_SIZE, BAD.stop * UNIT_SIZE)
    got = engine.receive(filter=parse_filter("tag", expression))
    assert bodies(got) == good
    assert engine.delivery.damaged_count == len(BAD)
    engine.ack(*got)
    assert engine.committed() == COUNT
    assert engine.receive() == []


@pytest.mark.parametrize("path", [queue_path(), LOG])
@pytest.mark.parametrize("orderly", [False, True])
def test_an_unreadable_message_that_came_back_made_every_receive_fail(path: str, orderly: bool) -> None:
    files, engine, good = filled(orderly=orderly)
    assert len(engine.receive()) == COUNT
    engine.now_ms += LEASE_MS
    size = UNIT_SIZE if path != LOG else engine.store.end_offset // COUNT
    files.unreadable[path] = (BAD.start * size + 12, (BAD.stop - 1) * size)
    got = engine.receive()
    assert set(good) <= set(bodies(got))
    assert len(got) + engine.delivery.damaged_count == COUNT
    assert engine.delivery.damaged_count >= 2
    engine.ack(*got)
    assert engine.committed() == COUNT


def test_an_unreadable_part_of_the_log_made_every_receive_fail() -> None:
    files, engine, good = filled()
    begin = BAD.start * (engine.store.end_offset // COUNT) + 100
    files.unreadable[LOG] = (begin, begin + 1)
    got = engine.receive()
    assert bodies(got) == [*good[:5], "m6", "m7", *good[5:]]
    assert engine.delivery.damaged_count == 1
    assert engine.store.damage.ranges["unreadable"] == 1


def test_a_new_group_starts_where_the_first_unit_cannot_be_read() -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    engine = Engine(ConsumerSettings(), files=files)  # type: ignore[arg-type]
    for body in ("m0", "m1", "m2"):
        engine.send(body)
    files.unreadable[queue_path()] = (0, UNIT_SIZE)
    assert bodies(engine.receive()) == ["m1", "m2"]
    assert engine.delivery.damaged_count == 1


@pytest.mark.parametrize("what", ["log", "queue"])
def test_delayed_messages_were_forgotten_with_the_one_that_cannot_be_read(what: str) -> None:
    files = FaultyFileSystem(MemoryFileSystem())
    broker = Broker(files, store_settings=ROOMY)  # type: ignore[arg-type]
    places = [broker.schedule(b"%d" % number, NOW_MS + 100).physical_offset for number in range(6)]
    if what == "log":
        files.unreadable[LOG] = (places[2], places[2] + 1)
    else:
        files.unreadable[queue_path(WHEEL_TOPIC)] = (2 * UNIT_SIZE, 3 * UNIT_SIZE)
    assert broker.deliver(NOW_MS + 100) == 6
    assert broker.bodies() == [b"0", b"1", b"3", b"4", b"5"]
    assert (broker.timers.lost_count, broker.timers.pending_count) == (1, 0)


def test_delayed_messages_were_forgotten_when_the_log_was_unwritable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their rows are removed before the append: an error of another kind did not put them back."""
    broker = Broker()
    for body in (b"a", b"b"):
        broker.schedule(body, NOW_MS + 100)

    def refuse(*_: object, **__: object) -> None:
        raise StorageError("open", "consumequeue/orders/0", errno.EMFILE)

    with monkeypatch.context() as patch:
        patch.setattr(broker.store.consume_queues, "next_offset", refuse)
        with pytest.raises(TroveError, match="RESOURCES_SCARCE"):
            broker.timers.deliver_due(NOW_MS + 100)
    assert broker.timers.pending_count == 2
    broker.deliver(NOW_MS + 100)
    assert broker.bodies() == [b"a", b"b"]
