"""Each string of each request of broker and nameserver is, once, a path or a name that looks like another.

Names are ASCII letters, digits, %, |, - and _, and upper and lower case differ; so no two of them normalise
alike (Unicode's forms, full width, case folding), and none leads out of its directory.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor

from tests.support.fake_loop import run
from tests.support.fuzzed_broker import add_first_user, check_outcome
from tests.support.fuzzing import MessageMaker, Values
from tests.support.services_here import (
    BrokerServices,
    Calls,
    NameserverServices,
    faults_seen,
    in_process,
    small_broker_settings,
)
from tests.support.trials import SOAK
from trovemq_proto.v1 import admin_pb2, group_pb2
from trovemq_store.files.real import RealFileSystem

PATHS: Final = ("../../x", "../x", "/tmp/trovemq-x", "a/../../x", "..", "x\\..\\y", "%2e%2e%2fx", "x\0y")
LOOKALIKES: Final = (
    "caf\u00e9",
    "cafe\u0301",
    "\uff4frders",
    "order\u017f",
    "\u212aeys",
    "orders\u200d",
    "orders ",
)
NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
SAFE: Final = re.compile(r"[%|a-zA-Z0-9_.-]+")
TRIES: Final = 40 if SOAK else 4
"""Requests of each method that each field is tried in."""


def places(message: Any) -> Iterator[tuple[Any, FieldDescriptor]]:
    """Every string field of the message and of those that lie in it; absent messages are made once."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield message, field
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        elif field.is_repeated:
            for inner in getattr(message, field.name):
                yield from places(inner)
        elif message.HasField(field.name):
            yield from places(getattr(message, field.name))


def put(owner: Any, field: FieldDescriptor, name: str) -> None:
    if field.is_repeated:
        getattr(owner, field.name).append(name)
    else:
        setattr(owner, field.name, name)


async def try_door(calls: Calls, method: str, source: random.Random) -> int:
    """Returns how many requests that were."""
    maker, asked = MessageMaker(source, Values()), 0
    descriptor = calls.methods[method].input_type
    for _ in range(TRIES):
        template = maker.message(descriptor, plausible=True)
        for number in range(len(list(places(template)))):
            for name in (source.choice(PATHS), source.choice(LOOKALIKES)):
                request = type(template)()
                request.CopyFrom(template)
                put(*list(places(request))[number], name)
                data = [request.SerializeToString()]
                outcome = await calls.call(method, data, (("x-mq-client-id", "client-1"),))
                check_outcome(method, outcome, [calls.parse(method, one) for one in outcome.replies])
                asked += 1
    return asked


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


async def try_all(root: Path) -> int:
    settings = small_broker_settings(root / "store", backup_root=str(root / "backups"))
    asked, source = 0, random.Random("names")
    with in_process():
        broker = BrokerServices(RealFileSystem(root / "store"), settings)
        add_first_user(broker)
        with faults_seen(broker):
            async with broker.working():
                for name in ("orders", "Orders", "ORDERS"):  # three topics, three groups
                    made = admin_pb2.CreateTopicRequest(topic=name, queue_count=1).SerializeToString()
                    assert (await broker.call("trovemq.v1.AdminService.CreateTopic", [made])).code == "OK"
                    group = group_pb2.CreateGroupRequest(group=name).SerializeToString()
                    assert (await broker.call("trovemq.v1.GroupService.CreateGroup", [group])).code == "OK"
                for method in sorted(broker.methods):
                    asked += await try_door(broker, method, source)
        topics = broker.store.topics.names(include_system=True)
        groups = [*broker.model.groups.names(), *(group for group, _ in broker.store.offsets.pairs())]
        assert {"orders", "Orders", "ORDERS"} <= set(topics) & set(groups)
        for name in (*topics, *groups):
            assert NAME.fullmatch(name), f"{name!r} is not a name"
        nameserver = NameserverServices()
        with faults_seen(nameserver):
            for method in sorted(nameserver.methods):
                asked += await try_door(nameserver, method, source)
    return asked


@pytest.mark.slow
def test_no_string_of_any_request_is_a_path_or_a_second_name_of_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, outside = tmp_path / "home", tmp_path / "work"
    (home / "backups").mkdir(parents=True)
    outside.mkdir()
    monkeypatch.chdir(outside)
    before = set(os.listdir(tmp_path.parent))
    assert run(try_all(home)) > 500
    assert tree(outside) == set()
    assert set(os.listdir(home)) == {"store", "backups"}
    assert set(os.listdir(tmp_path)) == {"home", "work"}
    assert set(os.listdir(tmp_path.parent)) == before
    assert not Path("/tmp/trovemq-x").exists()
    for path in tree(home / "store"):
        assert all(SAFE.fullmatch(part) for part in Path(path).parts), path
