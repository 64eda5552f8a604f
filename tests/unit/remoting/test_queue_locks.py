"""Which member holds a queue, by a model: locks, unlocks, members that leave, and time; a next leader."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_broker import TestBroker
from tests.unit.remoting.test_group_kinds import opened_broker
from trovemq_broker.server.remoting.lock_records import LockRecords
from trovemq_broker.server.remoting.queue_locks import LOCK_MS, TRUST_MS, QueueLocks
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs, QueueId
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_store.files.memory import MemoryFileSystem

CLIENTS = ("one", "two")
GROUPS = ("readers", "writers")


class _Connection:
    is_lost = False
    body = b""

    def answered(self, _request: Request, _code: int, _remark: str, _fields: object, body: bytes) -> None:
        self.body = body


def request(group: str, client: str, queues: list[int]) -> Request:
    names = [{"brokerName": "b", "queueId": queue, "topic": "orders"} for queue in queues]
    data = {"consumerGroup": group, "clientId": client, "mqSet": names}
    body = json.dumps(data).encode()
    return Request(cast("Any", _Connection()), Header(41), JSON, body, len(body))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lock", "unlock", "leave"]),
        st.sampled_from(GROUPS),
        st.sampled_from(CLIENTS),
        st.lists(st.integers(0, 3), max_size=4, unique=True),
        st.sampled_from([0, 1_000, LOCK_MS]),
    )
)


@given(STEPS)
def test_a_queue_has_the_holder_that_the_model_has(steps: list[tuple[str, str, str, list[int], int]]) -> None:
    now_ms = 0
    locks = QueueLocks(lambda: EpochMs(now_ms), lambda _request, _group: None)
    model: dict[tuple[str, int], tuple[str, int]] = {}
    for what, group, client, queues, passed_ms in steps:
        now_ms += passed_ms
        if what == "lock":
            locks.lock(request(group, client, queues))
            for queue in queues:
                holder, until_ms = model.get((group, queue), (client, 0))
                if holder == client or until_ms <= now_ms:
                    model[group, queue] = client, now_ms + LOCK_MS
        elif what == "unlock":
            locks.unlock(request(group, client, queues))
            for queue in queues:
                if model.get((group, queue), ("", 0))[0] == client:
                    del model[group, queue]
        else:
            locks.release(group, client)
            model = {key: one for key, one in model.items() if (key[0], one[0]) != (group, client)}
        assert len(locks) == len(model)
        for one in GROUPS:
            for queue in range(4):
                holder, until_ms = model.get((one, queue), ("", 0))
                for member in CLIENTS:
                    held = locks.holds(one, "orders", QueueId(queue), member)
                    assert held == (holder == member and until_ms > now_ms)


def test_a_next_leader_locked_a_queue_that_was_still_held() -> None:
    """It gives no lock until the rights of the leader before have ended."""
    refusals = [TroveError(errors.SERVICE_NOT_AVAILABLE, "ordered groups wait")]
    answers: list[bytes] = []

    def check(_request: Request, _group: str) -> None:
        if refusals:
            raise refusals.pop()

    locks = QueueLocks(lambda: EpochMs(1_000), check)
    queue = {"brokerName": "g", "queueId": 0, "topic": "orders"}
    body = json.dumps({"clientId": "one", "consumerGroup": "readers", "mqSet": [queue]}).encode()

    def answer(*, body: bytes) -> None:
        answers.append(body)

    request: Any = SimpleNamespace(body=body, answer=answer)
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        locks.lock(request)
    assert (len(locks), answers) == (0, [])
    locks.lock(request)
    assert len(locks) == len(json.loads(answers[0])["lockOKMQSet"]) == 1


# --- records ----------------------------------------------------------------------------------------------
class _Running(_Connection):
    """Runs the rest of a handler."""

    work: Any = None

    def run(self, _request: Request, work: Any) -> None:
        self.work = asyncio.ensure_future(work)


def locks_of(core: TestBroker) -> QueueLocks:
    core.groups.for_use("readers", auto_create=True, now_ms=core.now_ms)
    records = LockRecords(core)
    locks = QueueLocks(core.clock_ms, lambda _request, _group: None, records)
    records.present = locks.of_group
    return locks


async def held(locks: QueueLocks, client: str, queues: list[int]) -> list[int]:
    """The queues that the client holds after it has asked for these."""
    made, connection = request("readers", client, queues), _Running()
    made = Request(cast("Any", connection), made.header, JSON, made.body, len(made.body))
    locks.lock(made)
    if connection.work is not None:
        await connection.work
    return sorted(one["queueId"] for one in json.loads(connection.body)["lockOKMQSet"])


@pytest.mark.asyncio
async def test_the_next_leader_gave_a_queue_to_a_second_member() -> None:
    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        assert await held(locks_of(core), "one", [0, 1]) == [0, 1]
    files = files.after_process_kill()
    async with opened_broker(files, core.now_ms) as core:
        locks = locks_of(core)
        assert await held(locks, "two", [0, 1, 2]) == [2]
        assert await held(locks, "one", [0]) == [0], "the holder continues at once"
        core.now_ms = EpochMs(core.now_ms + TRUST_MS)
        assert await held(locks, "two", [0, 1]) == [1], "the holder did not ask for the other one"
    async with opened_broker(files.after_process_kill(), core.now_ms) as core:
        locks = locks_of(core)
        assert await held(locks, "three", [0, 1, 2]) == []
        assert await held(locks, "two", [1, 2]) == [1, 2]


@pytest.mark.asyncio
async def test_a_member_that_had_left_held_its_queue_at_the_next_leader() -> None:
    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        locks = locks_of(core)
        assert await held(locks, "one", [0, 1]) == [0, 1]
        locks.release("readers", "one")
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "queue-locks"))
    async with opened_broker(files.after_process_kill(), core.now_ms) as core:
        assert await held(locks_of(core), "two", [0, 1]) == [0, 1]


@pytest.mark.asyncio
async def test_a_renewal_was_recorded() -> None:
    async with opened_broker(MemoryFileSystem()) as core:
        locks = locks_of(core)
        await held(locks, "one", [0, 1])
        end = core.store.end_offset
        for _ in range(3):
            core.now_ms = EpochMs(core.now_ms + 20_000)
            assert await held(locks, "one", [0, 1]) == [0, 1]
        assert core.store.end_offset == end


@pytest.mark.asyncio
async def test_a_lock_was_given_though_its_record_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_change: object) -> None:
        raise TroveError(errors.DISK_FULL)

    files = MemoryFileSystem()
    async with opened_broker(files) as core:
        locks = locks_of(core)
        with monkeypatch.context() as patch:
            patch.setattr(core.group_changes, "mark", refused)
            for _ in range(2):
                with pytest.raises(TroveError, match="DISK_FULL"):
                    await held(locks, "one", [0])
        assert await held(locks, "one", [0]) == [0]
    async with opened_broker(files.after_process_kill(), core.now_ms) as core:
        assert await held(locks_of(core), "two", [0]) == []


@pytest.mark.asyncio
async def test_names_of_groups_that_do_not_exist_stayed_in_memory() -> None:
    async with opened_broker(MemoryFileSystem()) as core:
        locks = locks_of(core)
        for number in range(5):
            locks.unlock(request(f"group-{number}", "one", [0]))
        assert locks._read == set()
        await held(locks, "one", [0])
        assert locks._read == {"readers"}
