"""A broker's old segments go, by age and where the disk fills, and pending messages stay."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.support.broker_process import error_of, running_broker
from tests.support.rocketmq_client import RawClient, create_topics
from tests.support.stubs import MESSAGES, QUERIES, STORE, stub_of
from trovemq_proto.records import decode_message
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import (
    message_pb2,
    query_pb2,
    store_pb2,
)
from trovemq_store.backup.restore import restore

pytestmark = pytest.mark.slow

EVERY_HOUR = f"deleteWhen={';'.join(map(str, range(24)))}"
OFTEN = "cleanResourceInterval=100"
SHORT_WAITS = ("receive_poll_min_ms=0", "invisible_min_ms=1000")
NEVER_FULL = ("disk_warning_percent=100", "disk_forcible_percent=100")
FORCED = ("disk_forcible_percent=1", "disk_warning_percent=100", "cleanFileForciblyEnable=true", OFTEN)
SEGMENT_SIZE = 1 << 20  # see broker_process.SMALL_FILES
FILLER_SIZE = 250_000


class Plain:
    """TroveMQ's own protocol, one call at a time."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._messages = stub_of(MESSAGES, self._channel)
        self._queries = stub_of(QUERIES, self._channel)

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(self, body: bytes, key: str = "") -> Any:
        request = message_pb2.SendRequest(
            topic="filler", queue_id=0, messages=[{"body": body, "keys": [key] if key else []}]
        )
        return self._messages.Send(request, timeout=60)

    def refusal(self) -> str:
        """The symbol of the error with which a send is refused; "" where it is not."""
        try:
            self.send(b"new")
        except grpc.RpcError as error:
            return error_of(error).symbol
        return ""

    def fill(self, segments: int) -> None:
        """Makes the log longer by `segments`."""
        for _ in range(segments * SEGMENT_SIZE // FILLER_SIZE + 1):
            self.send(bytes(FILLER_SIZE), "all")

    def pull(self, offset: int) -> Any:
        return self._messages.Pull(message_pb2.FetchRequest(topic="filler", offset=offset), timeout=60)

    def pull_refused(self, offset: int) -> tuple[str, int]:
        """The error's symbol, and the minimum that it names."""
        with pytest.raises(grpc.RpcError) as caught:
            self.pull(offset)
        error = error_of(caught.value)
        return error.symbol, int(error.fields["min_offset"])

    def ask(self, begin: int = 0) -> Any:
        """The last page of a query for that key."""
        request = query_pb2.QueryByKeyRequest(topic="filler", key="all", messages_max=10_000, begin=begin)
        *_, last = self._queries.QueryByKey(request, timeout=30)
        return last

    def back_up(self, target: Path) -> None:
        request = store_pb2.BackupRequest(directory=str(target))
        *_, last = stub_of(STORE, self._channel).Backup(request, timeout=60)
        assert last.done

    def query(self) -> int:
        """How many messages the key of all fillers has."""
        count = 0
        request = query_pb2.QueryByKeyRequest(topic="filler", key="all", messages_max=10_000)
        for page in self._queries.QueryByKey(request, timeout=30):
            assert list(page.notes) == []
            data = page.records
            while data:
                size = int.from_bytes(data[:4])
                assert decode_message(data[:size]).topic == "filler"
                data, count = data[size:], count + 1
        return count


def names(store: Path, directory: str = "commitlog") -> list[str]:
    return sorted(path.name for path in (store / directory).iterdir())


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def bodies(messages: list[Any]) -> list[bytes]:
    return sorted(message.body for message in messages)


def test_old_segments_go_and_what_is_pending_comes_once(tmp_path: Path) -> None:
    """With a broker that is stopped and one that is killed, at once: most of the time is waiting."""
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(check_old_segments, tmp_path / str(kill), kill) for kill in (False, True)]
    for run in runs:
        run.result()


def check_old_segments(store: Path, kill: bool) -> None:
    old = ("reserved_time_ms=1000", EVERY_HOUR, OFTEN, *NEVER_FULL, *SHORT_WAITS)
    with running_broker(store, *old) as broker:
        create_topics(
            broker.address, {"filler": "NORMAL", "orders": "NORMAL", "later": "DELAY", "paid": "TRANSACTION"}
        )
        with RawClient(broker.address) as client, Plain(broker.address) as plain:
            client.send("orders", b"acked", b"in flight")
            got = client.receive_until("workers", "orders", 2, invisible_s=6)
            acked = [one for one in got if one.body == b"acked"]
            assert client.acknowledge("workers", acked).status.code == v2.OK
            due_ms = int(time.time() * 1000) + 8_000
            client.send("later", b"timer", deliver_at_ms=due_ms, message_type=v2.DELAY)
            half = client.send("paid", b"half", message_type=v2.TRANSACTION).entries[0]
            plain.fill(3)
            first = names(store)[0]
            wait_until(lambda: names(store)[0] >= f"{3 * SEGMENT_SIZE:020d}")
            assert first == "0" * 20
            symbol, low = plain.pull_refused(0)
            assert symbol == "OFFSET_OUT_OF_RANGE"
            assert low >= 9
            left = plain.pull(low)
            assert left.min_offset == low
            assert plain.query() == left.max_offset - low
            assert client.end_transaction("paid", half, v2.COMMIT).status.code == v2.OK
            assert bodies(client.receive_until("payers", "paid", 1)) == [b"half"]
        if kill:
            broker.kill()
        else:
            assert broker.stop() == 0
    with running_broker(store, *NEVER_FULL, *SHORT_WAITS) as broker:
        with RawClient(broker.address) as client, Plain(broker.address) as plain:
            assert plain.pull_refused(0)[1] >= low
            assert plain.query() > 0
            again = client.receive_until("workers", "orders", 1, poll_s=3)
            assert bodies(again) == [b"in flight"]
            assert again[0].system_properties.delivery_attempt == 2
            assert client.acknowledge("workers", again).status.code == v2.OK
            late = client.receive_until("waiters", "later", 1, poll_s=3)
            assert bodies(late) == [b"timer"]
            assert time.time() * 1000 >= due_ms
            assert client.acknowledge("waiters", late).status.code == v2.OK
            assert client.receive("workers", "orders", poll_s=1) == []
            assert client.receive("waiters", "later", poll_s=1) == []
        assert broker.stop() == 0


def test_a_disk_over_its_warning_level_takes_no_message_but_serves_reads(tmp_path: Path) -> None:
    with running_broker(tmp_path, *NEVER_FULL) as broker:
        create_topics(broker.address, {"filler": "NORMAL", "orders": "NORMAL", "later": "DELAY"})
        with RawClient(broker.address) as client:
            client.send("orders", b"one", b"two")
        assert broker.stop() == 0
    full = ("disk_warning_percent=1", OFTEN, *SHORT_WAITS)
    with running_broker(tmp_path, *full) as broker:
        with RawClient(broker.address) as client, Plain(broker.address) as plain:
            wait_until(lambda: plain.refusal() == "DISK_FULL")
            soon_ms = int(time.time() * 1000) + 1_000
            for topic, how in (
                ("orders", {}),
                ("later", {"deliver_at_ms": soon_ms, "message_type": v2.DELAY}),
            ):
                reply = client.send(topic, b"new", **how)  # type: ignore[arg-type]
                assert reply.status.code != v2.OK
                assert "disk" in reply.status.message
            got = client.receive_until("workers", "orders", 2)
            assert bodies(got) == [b"one", b"two"]
            assert client.acknowledge("workers", got).status.code == v2.OK
            assert client.receive("workers", "orders", poll_s=1) == []
        assert broker.stop() == 0
    with running_broker(tmp_path, *NEVER_FULL) as broker, RawClient(broker.address) as client:
        assert client.send("orders", b"three").status.code == v2.OK
        assert bodies(client.receive_until("workers", "orders", 1)) == [b"three"]


def test_a_filling_disk_takes_segments_before_their_time(tmp_path: Path) -> None:
    with running_broker(tmp_path, *FORCED) as broker:
        create_topics(broker.address, {"filler": "NORMAL"})
        with Plain(broker.address) as plain:
            plain.fill(4)
            wait_until(lambda: len(names(tmp_path)) == 1)
            assert plain.pull_refused(0)[0] == "OFFSET_OUT_OF_RANGE"
        assert broker.stop() == 0
    with running_broker(tmp_path, *NEVER_FULL) as broker, Plain(broker.address) as plain:
        _, low = plain.pull_refused(0)
        assert plain.send(b"next").first_queue_offset == plain.pull(low).max_offset - 1


def test_a_query_was_called_complete_after_the_disk_took_fresh_messages(tmp_path: Path) -> None:
    store, backup, restored = tmp_path / "store", tmp_path / "backup", tmp_path / "restored"
    with running_broker(store, *FORCED, f"backup_root={tmp_path}") as broker:
        create_topics(broker.address, {"filler": "NORMAL"})
        with Plain(broker.address) as plain:
            plain.fill(4)
            wait_until(lambda: len(names(store)) == 1)
            found = plain.ask()
            assert (found.complete, found.cursor) == (False, "")
            assert "removed before their time" in found.notes[0]
            assert plain.ask(begin=int(time.time() * 1000) + 1).complete, "it does not reach after it"
            plain.back_up(backup)
        assert "removed before their time" in json.loads(broker.get("/readyz")[1])["warnings"]["retention"]
        assert broker.stop() == 0
    restore(backup, restored, lambda _path: None)
    for path in (store, restored):
        with running_broker(path, *NEVER_FULL) as broker, Plain(broker.address) as plain:
            assert not plain.ask().complete
            assert broker.stop() == 0
