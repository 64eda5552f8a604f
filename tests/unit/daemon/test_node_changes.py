"""Changes of a node that come at one moment: none is lost, and no store is used when it is closed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from trovemq_broker.daemon.opening import wall_ms
from trovemq_broker.daemon.replica.follower_role import FollowerRole
from trovemq_broker.daemon.replica.follower_work import FollowerWork
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.leader_role import EPOCH_TOPIC, LeaderRole
from trovemq_broker.daemon.replica.node import NodeApp
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import NodeFile, OpenNode
from trovemq_broker.daemon.replica.role import Ended
from trovemq_broker.daemon.replica.store_place import founded
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.status import NodeStatus, Promoted, Role
from trovemq_daemon.addresses import Address
from trovemq_daemon.lifecycle import Stop
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import PhysicalOffset, QueueId
from trovemq_store.engine.record_writer import NewRecord, RecordWriter
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.replica import replica_file
from trovemq_store.replica.membership import Member, Members
from trovemq_store.replica.replica_file import ReplicaFile

ME = Member("a", "127.0.0.1:1", "127.0.0.1:2")
BLOCKED_S = 0.05
"""How long a call is watched that must not end."""


def test_a_cut_that_had_ended_came_back_with_another_change() -> None:
    files = MemoryFileSystem()
    node = NodeFile.open(files)
    node.begin_truncation(PhysicalOffset(0), 0)
    change = threading.Thread(target=partial(node.promise, 7))
    with node.changed_by_start():
        ReplicaFile.open(files).end_truncation()  # as the start of the store does
        change.start()
        change.join(BLOCKED_S)
    change.join()
    saved = replica_file.load(files)
    assert saved is not None
    assert (saved.truncating, saved.promised_epoch) == (None, 7)


def _settings(store: Path) -> BrokerSettings:
    return BrokerSettings(
        coordination="manual",
        name="orders",
        node_name="a",
        replication_listen="127.0.0.1:2",
        store=str(store),
        commit_log_file_size=1 << 20,
        flush_in_kernel_enable=False,
    )


async def _open(store: Path) -> tuple[OpenNode, FollowerRole]:
    settings = _settings(store)
    node = await OpenNode.open(settings, ("commit_log_file_size",), Address("127.0.0.1", 1))
    node.enter_group(founded(settings, (ME,), node.directory))
    node.lead_no_more()
    return node, FollowerRole(node, settings, cast(NodeCalls, None))


@pytest.mark.asyncio
async def test_a_promise_began_on_the_store_of_a_role_that_had_ended(tmp_path: Path) -> None:
    node, role = await _open(tmp_path)
    running = asyncio.create_task(role.run(Stop()))
    await asyncio.sleep(0)
    async with role._changing:
        asked = asyncio.create_task(role.promise(64))
        await asyncio.sleep(0)
        role._end(Ended())
    assert await running == Ended()
    assert await asked is None
    assert (node.state.promised, role._work._commit) == (0, None)
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_work_that_was_stopped_by_a_cancelled_caller_used_the_store(tmp_path: Path) -> None:
    node, role = await _open(tmp_path)
    work: FollowerWork = role._work
    work.start(node.store)
    tasks: list[asyncio.Task[Any]] = work._tasks
    await asyncio.sleep(0)
    stopping = asyncio.create_task(work.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait((stopping,))
    assert stopping.cancelled()
    assert all(task.done() for task in tasks)
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_records_of_a_start_waited_for_the_next_message(tmp_path: Path) -> None:
    node, _ = await _open(tmp_path)
    leadership = Leadership(64, Promoted(64, ("a",), (), 0), node.place.listed)
    role = LeaderRole(node, _settings(tmp_path), cast(NodeCalls, None), leadership)
    await role.open()
    role.attach()
    record = NewRecord(EPOCH_TOPIC, QueueId(0), b"of the start")
    RecordWriter(node.store, lambda: None).append([record], wall_ms())
    node.store.flush()
    assert role.streams.commit_offset < node.store.end_offset
    role.serves()
    assert role.streams.commit_offset == node.store.end_offset
    await role.close()
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_a_group_was_founded_beside_nodes_that_opened_their_stores(tmp_path: Path) -> None:
    """Their listeners answer all the time, and a node without a role is no new one."""
    app = NodeApp(_settings(tmp_path))
    with pytest.raises(TroveError) as caught:
        app.open_status()
    assert caught.value.spec is errors.SERVICE_NOT_AVAILABLE


@pytest.mark.asyncio
@pytest.mark.parametrize(("is_forced", "serves"), [(True, True), (False, False)])
@pytest.mark.parametrize("role_of_other", [Role.LEADER, Role.FOLLOWER])
async def test_a_removed_node_that_leads_steps_down(
    tmp_path: Path, is_forced: bool, serves: bool, role_of_other: Role
) -> None:
    node, _ = await _open(tmp_path)
    leadership = Leadership(640, Promoted(640, ("a",), (), 0), node.place.listed, is_forced)
    role = LeaderRole(node, _settings(tmp_path), cast(NodeCalls, None), leadership)
    role.is_serving = serves
    own = node.place
    other = Members(version=9, nodes=(ME._replace(node="c", place=0),), removed=(own.store_id,))
    status = NodeStatus(group="orders", node="c", cluster=own.cluster, role=role_of_other, listed=other)
    ended = []
    for one in (replace(status, listed=own.listed), status):
        role._finding.statuses = {"c": one}
        role._found()
        ended.append(role.stop.requested)
    assert ended == [False, True]
    await role.close()
    assert not node.place.leads
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_a_leader_with_enough_copies_hears_of_a_list_that_never_counted(tmp_path: Path) -> None:
    node, _ = await _open(tmp_path)
    leadership = Leadership(640, Promoted(640, ("a",), (), 0), node.place.listed)
    role = LeaderRole(node, _settings(tmp_path), cast(NodeCalls, None), leadership)
    role.is_serving = True
    own = node.place
    other = Members(version=9, nodes=(ME._replace(node="c", place=0),), removed=(own.store_id,))
    deposed = NodeStatus(
        group="orders", node="c", cluster=own.cluster, role=Role.LEADER, epoch=64, listed=other
    )
    role._finding.statuses = {"c": deposed}
    role._found()
    assert not role.stop.requested
    await role.close()
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_a_removed_node_follows_and_gathers_no_more(tmp_path: Path) -> None:
    node, role = await _open(tmp_path)
    own = node.place
    listed = Members(version=9, nodes=(ME._replace(node="c", place=0),), removed=(own.store_id,))
    role._finding.statuses = {
        "c": NodeStatus(
            group="orders", node="c", cluster=own.cluster, role=Role.LEADER, epoch=64, listed=listed
        )
    }
    await role._step()
    assert role._following is None
    assert "was removed" in role.problem
    assert node.place.listed == listed, "it knows that at its next start, too"
    role._finding.statuses = {}
    await role._step()
    assert "was removed" in role.problem
    await asyncio.to_thread(node.close)
