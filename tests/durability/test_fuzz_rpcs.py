"""Every RPC of TroveMQ's own services, of broker and nameserver, against hostile requests.

RocketMQ's services: test_fuzz_rocketmq_rpcs.py.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from tests.durability.test_fuzz_rocketmq_rpcs import INPUTS, TRIALS, fuzz, limited
from tests.support.closed_generators import generators_closed
from tests.support.fake_loop import run
from tests.support.fuzzed_broker import NATIVE as PACKAGE
from tests.support.fuzzed_broker import FuzzedBroker, check_outcome
from tests.support.fuzzing import MessageMaker, Values, request_bytes
from tests.support.services_here import (
    NAMESERVER,
    NATIVE,
    ROCKETMQ,
    NameserverServices,
    clock_ms,
    faults_seen,
    in_process,
    methods_of,
    services_of,
    small_broker_settings,
)
from tests.support.trials import Trials
from trovemq_daemon import request_bounds
from trovemq_nameserver.routes import RouteLimits
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import common_pb2, replication_pb2, route_pb2
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.files.real import RealFileSystem

BACKUP = f"{PACKAGE}StoreService.Backup"
METHODS = sorted(set(methods_of(NATIVE)) - {BACKUP})
ROUTE_LIMITS = RouteLimits(brokers_max=20, topics_per_broker_max=30, topic_routes_max=100)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_no_request_breaks_a_service_of_the_broker(name: str, trials: Trials) -> None:
    for number in trials.numbers(TRIALS, default=1):
        with trials.one(number) as source:
            files = MemoryFileSystem()
            run(fuzz(name, files, files.after_power_cut, random.Random(f"{name} {source.random()}")))
            trials.count_each("S2", "inputs, to each RPC", name, INPUTS)


@pytest.mark.slow
def test_no_request_breaks_the_backup_and_none_leaves_its_place(trials: Trials, tmp_path: Path) -> None:
    """A backup is of real files."""
    for number in trials.numbers(TRIALS, default=1):
        with trials.one(number) as source:
            root = tmp_path / f"trial {number}"
            run(fuzz_backup(root, random.Random(source.random())))
            trials.count_each("S2", "inputs, to each RPC", BACKUP, INPUTS)
            assert {path.name for path in root.iterdir()} == {"store", "backups", "copy"}
            shutil.rmtree(root)


async def fuzz_backup(root: Path, source: random.Random) -> None:
    (root / "backups").mkdir(parents=True)
    settings = small_broker_settings(root / "store", backup_root=str(root / "backups"))

    def copied() -> RealFileSystem:
        shutil.copytree(root / "store", root / "copy")
        return RealFileSystem(root / "copy")

    with in_process(), limited():
        broker = FuzzedBroker(RealFileSystem(root / "store"), settings, source)
        directories = broker.values.texts["directory"]
        directories += ["/", "relative", f"{root}/outside", f"{root}/backups/../outside", f"{root}/store/x"]
        with faults_seen(broker.calls), generators_closed():
            async with broker.working():
                for part in range(10):
                    directories.append(f"{root}/backups/{part}")
                    await broker.inputs(BACKUP, INPUTS // 10)
            broker.check_tables()
            assert broker.calls.all.store_service.counters.backups > 0, "some were allowed"
            broker.check_recovered(copied())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(methods_of(NAMESERVER)))
def test_no_request_breaks_a_service_of_the_nameserver(name: str, trials: Trials) -> None:
    for number in trials.numbers(TRIALS, default=1):
        with trials.one(number) as source:
            run(fuzz_nameserver(name, random.Random(f"{name} {source.random()}")))
            trials.count_each("S2", "inputs, to each RPC", f"nameserver {name}", INPUTS)


async def fuzz_nameserver(name: str, source: random.Random) -> None:
    with in_process():
        calls = NameserverServices(ROUTE_LIMITS)
        recent: list[bytes] = []
        maker, registry = MessageMaker(source, Values()), calls.registry
        expiry = asyncio.create_task(registry.run_expiry())
        descriptor, done = calls.methods[name].input_type, 0
        with faults_seen(calls), generators_closed():
            while done < INPUTS:
                templates = [heartbeat(source)] if descriptor.name == "Heartbeat" else []
                length = min(source.randrange(1, 9) if templates else 1, INPUTS - done)
                data = [request_bytes(maker, source, descriptor, recent, templates) for _ in range(length)]
                register = [heartbeat(source).SerializeToString()]
                for method, requests in ((name, data), ("trovemq.v1.RegistrationService.Register", register)):
                    outcome = await asyncio.wait_for(calls.call(method, requests), 60)
                    check_outcome(method, outcome, [calls.parse(method, one) for one in outcome.replies])
                done += length
                assert registry.table.broker_count <= ROUTE_LIMITS.brokers_max
                assert registry.table.topic_routes <= ROUTE_LIMITS.topic_routes_max
                assert len(registry.watchers) == 0
                await asyncio.sleep(source.choice((0, 0, 0, 0.5)))
        await asyncio.sleep(30)
        assert registry.table.broker_count == 0, "brokers whose streams broke are gone after a while"
        assert not expiry.done()
        expiry.cancel()


def heartbeat(source: random.Random) -> route_pb2.Heartbeat:
    """As a broker sends it."""
    number = source.randrange(40)
    info = common_pb2.BrokerInfo(cluster="c", name=f"b{number}", address=f"10.0.0.{number}:8081")
    topics = [common_pb2.TopicRoute(topic=f"t{i}", queue_count=4) for i in range(source.randrange(8))]
    whole = route_pb2.Heartbeat(broker=info, topics=topics, data_version=clock_ms())
    if source.random() < 0.3:
        whole.base_version = clock_ms()
        whole.removed_topics.extend(f"t{i}" for i in range(source.randrange(8)))
    return whole


@pytest.mark.slow
def test_no_bytes_break_the_reader_of_requests(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    """The common part of every RPC: its parts are counted, protobuf reads it. Here all of a request is
    counted, as those of large ones are: with the limit at its own count it passes, and below it does not."""
    monkeypatch.setattr(request_bounds, "SIZE_ALWAYS_FINE", 0)
    types = [method.input_type for method in methods_of((*NATIVE, *ROCKETMQ, *NAMESERVER)).values()]
    maker, done = MessageMaker(random.Random(0), Values()), 0
    for number in trials.numbers(20_000, default=2_000):
        with trials.one(number) as source:
            maker.begin(source)
            descriptor = types[number % len(types)]
            recent = [maker.message(descriptor, plausible=True).SerializeToString()]
            data = request_bytes(maker, source, descriptor, recent)
            check_reader(data, descriptor)
        done += 1
    trials.count("S2", "inputs, to the reader of all RPCs", done)


def check_reader(data: bytes, descriptor: Descriptor) -> None:
    request_type = GetMessageClass(descriptor)
    try:
        request = request_bounds.BoundedReader(request_type)(data)
    except DecodeError:
        return  # gRPC refuses the call
    parts = request_bounds.PARTS_MAX - request_bounds._walk(
        data, 0, len(data), descriptor, request_bounds.PARTS_MAX
    )
    assert 0 <= parts <= len(data)
    assert request_type.FromString(request.SerializeToString()) is not None
    request_bounds.check_parts(data, descriptor, parts)
    if parts:
        with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
            request_bounds.check_parts(data, descriptor, parts - 1)


def test_every_method_of_every_service_is_fuzzed() -> None:
    """The lists are made from the descriptors; the services are those of the protocol's files."""
    from tests.durability.test_fuzz_rocketmq_rpcs import METHODS as ROCKETMQ_METHODS

    everything = Path(__file__).parents[2] / "proto"
    declared = sum(
        line.strip().startswith("rpc ")
        for path in everything.rglob("*.proto")
        for line in path.read_text().splitlines()
    )
    between_nodes = methods_of(services_of(replication_pb2))  # test_replica_frames.py fuzzes them
    native = {*METHODS, BACKUP, *methods_of(NAMESERVER), *between_nodes}
    assert len(native) + len(ROCKETMQ_METHODS) == declared
