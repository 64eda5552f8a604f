"""File systems that are really full (R8): ext4 on a loop device and tmpfs with a size, under a real daemon.

While the disk is full, sends are refused with DISK_FULL; everything is read, deliveries are acknowledged,
consumer offsets are saved, delayed messages are delivered and transactions end; a start works. Once there is
space, messages are accepted again, without a restart. Nothing acknowledged is lost.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.rocketmq_client import RawClient, create_topics
from tests.support.small_disks import WHAT, fill_up, small_disk
from tests.support.stubs import ADMIN, QUERIES, stub_of
from tests.support.trials import Trials
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import admin_pb2, query_pb2

pytestmark = pytest.mark.slow

TOTAL, PARTS = 20, 2
DEFAULT = (0, 3)
"""ext4, and it continues; tmpfs, and it starts while the disk is full."""
RESUMES_WITHIN_S = 240
"""Some seconds are meant; the machine may be busy."""
WAIT_S_MAX = 240
SETTINGS = (
    "disk_warning_percent=90",
    "disk_forcible_percent=85",
    "disk_used_percent_max=95",
    "clean_forcibly_enable=false",
    "new_group_start=begin",
)
SENDS_MAX = 200
DISK_FULL = ("disk has no space", "No space left", "of the disk is used")  # the texts of its three causes


class Trial:
    """One broker on one small disk. `sent`: the bodies that were acknowledged, in order."""

    def __init__(self, store: Path, source: random.Random) -> None:
        self.store = store
        self.source = source
        self.sent: list[bytes] = []

    def send(self, client: RawClient, size: int = 0) -> str:
        """Empty where it was acknowledged, else the broker's error."""
        body = f"{len(self.sent)}-".encode() + bytes(size or self.source.randrange(10, 20_000))
        reply = client.send("orders", body)
        if reply.status.code == v2.OK:
            self.sent.append(body)
            return ""
        message: str = reply.status.message
        return message

    def check_all(self, address: str) -> None:
        with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
            queries = stub_of(QUERIES, channel)
            for offset, body in enumerate(self.sent):
                place = {"topic": "orders", "queue_id": 0, "queue_offset": offset}
                reply = queries.GetMessage(query_pb2.GetMessageRequest(location=place), timeout=WAIT_S_MAX)
                assert body in reply.records, f"message {offset} is lost"

    def check_full(self, client: RawClient) -> None:
        """Sends are refused for the disk's sake, soon and for good."""
        refusals = []
        for _ in range(SENDS_MAX):
            if refusal := self.send(client, 20_000):
                refusals.append(refusal)
                if len(refusals) == 3:
                    break
        assert len(refusals) == 3, "sends continue"
        assert all(any(reason in refusal for reason in DISK_FULL) for refusal in refusals), refusals


def until(what: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.05)
    return what()


def is_kept(store: Path) -> bool:
    own = store / "trovemq"
    return (
        (own / "kept-segment").exists()
        and (own / "reserve-7").exists()
        and not (own / "new-segment").exists()
    )


def consume(client: RawClient, count: int) -> None:
    """Receives and acknowledges `count` messages: the start after it receives, too."""
    taken = client.receive_until("workers", "orders", count, at_once=1)
    assert len(taken) == count
    assert client.acknowledge("workers", taken).status.code == v2.OK


def commit_offsets(address: str, begin: int) -> None:
    with grpc.insecure_channel(address) as channel:
        admin = stub_of(ADMIN, channel)
        for offset in range(begin, begin + 8):
            request = admin_pb2.CommitOffsetRequest(
                group="audit", topic="orders", queue_id=0, offset=offset % 3
            )
            admin.CommitOffset(request, timeout=WAIT_S_MAX)


def run_trial(trial: Trial, disk: Path, restarts: bool) -> None:
    settings = SETTINGS if trial.source.random() < 0.5 else (*SETTINGS, "flushDiskType=ASYNC_FLUSH")
    with running_broker(trial.store, *settings) as broker, RawClient(broker.address) as client:
        create_topics(broker.address, {"orders": "NORMAL"}, queue_count=1)
        create_topics(broker.address, {"later": "DELAY", "deals": "TRANSACTION"}, queue_count=1)
        for _ in range(trial.source.randrange(20, 40)):
            assert trial.send(client) == ""
        half = client.send("deals", b"half", message_type=v2.TRANSACTION)
        assert half.status.code == v2.OK
        due_ms = int(time.time() * 1000) + 3_000
        delayed = client.send("later", b"delayed", deliver_at_ms=due_ms, message_type=v2.DELAY)
        assert delayed.status.code == v2.OK
        assert until(lambda: is_kept(trial.store), WAIT_S_MAX)
        others = fill_up(disk)
        trial.check_full(client)
        while_full(trial, broker, client, half.entries[0])
        if restarts:
            end_and_start_full(trial, broker, settings, others)
            return
        resume(trial, client, others)
        trial.check_all(broker.address)
        assert broker.stop() == 0
    with running_broker(trial.store, *settings) as broker:
        trial.check_all(broker.address)


def while_full(trial: Trial, broker: BrokerProcess, client: RawClient, half: Any) -> None:
    consume(client, 10)
    commit_offsets(broker.address, 1)
    assert client.end_transaction("deals", half, v2.COMMIT).status.code == v2.OK
    assert len(client.receive_until("workers", "later", 1, within_s=WAIT_S_MAX)) == 1
    trial.check_all(broker.address)
    trial.check_full(client)
    assert broker.process.poll() is None


def end_and_start_full(trial: Trial, broker: BrokerProcess, settings: tuple[str, ...], others: Path) -> None:
    if trial.source.random() < 0.5:
        broker.kill()
    else:
        broker.stop()
    with running_broker(trial.store, *settings) as again, RawClient(again.address) as client:
        trial.check_all(again.address)
        trial.check_full(client)
        consume(client, 1)
        resume(trial, client, others)
        trial.check_all(again.address)


def resume(trial: Trial, client: RawClient, others: Path) -> None:
    others.unlink()
    assert until(lambda: trial.send(client) == "", RESUMES_WITHIN_S), "messages are not accepted again"


@pytest.mark.parametrize("part", range(PARTS))
def test_a_full_disk(trials: Trials, part: int, tmp_path: Path) -> None:
    done = 0
    for number in trials.chosen(TOTAL, DEFAULT, part=part, parts=PARTS):
        with trials.one(number) as source:
            place = tmp_path / f"{number}"
            place.mkdir()
            with small_disk(("ext4", "tmpfs")[part], place, trials) as disk:
                run_trial(Trial(disk / "store", source), disk, restarts=number // 2 % 2 == 1)
        done += 1
    trials.count("R8", WHAT, done)
