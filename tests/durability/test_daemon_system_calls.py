"""System calls of a real daemon that fail, by strace's fault injection (R7).

After a failed fdatasync or fsync nothing is acknowledged any more, the process ends with its exit code, and
the next start has everything that was acknowledged. After any other failed call the answer is an error or
none is needed, the daemon continues, and no descriptor stays open. So it is after a sync for which there
was no space, of a file that is only being made: nothing that was acknowledged is in it, and it is given up. A
commit of the trees syncs, and does not report which of its calls has failed: its EIO is a failed sync.

Messages are sent until the failing call was reached: strace writes down which one it was, and of which file.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from tests.support.broker_process import BrokerProcess, running_broker
from tests.support.rocketmq_client import RawClient, create_topics
from tests.support.stubs import QUERIES, stub_of
from tests.support.trials import SOAK, Trials
from trovemq_daemon.lifecycle import ExitCode
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.v1 import query_pb2

pytestmark = pytest.mark.slow

CASES = (
    ("fdatasync", "EIO"),
    ("fdatasync", "ENOSPC"),
    ("fsync", "EIO"),
    ("fallocate", "ENOSPC"),
    ("fallocate", "EIO"),
    ("pwrite64", "EIO"),
    ("pwrite64", "ENOSPC"),
    ("openat", "EMFILE"),
    ("openat", "ENFILE"),
    ("openat", "ENOMEM"),
    ("mmap", "ENOMEM"),
    ("openat", "EIO"),
    ("rename", "EIO"),
    ("unlink", "EIO"),
    ("write", "EIO"),
)
FATAL = ("fdatasync", "fsync")
WHAT = "failing system calls of the daemon"
MOMENTS = 5
DEFAULT = 15
SENDS = 60
SENDS_MAX = 600
SEGMENT = 131_072
RARE_WHEN_MAX = {"fsync": 6, "fallocate": 3, "mmap": 3, "rename": 6, "unlink": 3, "write": 4}
"""These calls are about as many in the time of SENDS messages; the others are many more."""
WHEN_MAX = 11
TREES = "trovemq/trees/data.mdb"
LOG_DIRECTORY = "commitlog"
"""It is opened for its sync only, which then fails."""
MADE = tuple(f"trovemq/{name}" for name in ("spare-segment", "new-segment", "index-file.new"))
TEMPORARY = tuple(f"{name}.tmp" for name in ("trovemq/state.json", "checkpoint"))
"""Files that are being made: they get their own names, or are given up."""
RESUMES_WITHIN_S = 240
DESCRIPTORS_MORE_MAX = 12
"""Files that a daemon has open for good reason, and had not before: a segment, a queue, an index file."""


@dataclass(frozen=True)
class Failing:
    """A call that is to fail; strace writes every one of its kind to `log`."""

    log: Path
    store: Path

    def files(self) -> list[str]:
        """The files (their paths in the store) or directories whose calls have failed: strace counts the
        calls of each thread, so there may be several."""
        unfinished: dict[str, str] = {}
        found: list[str] = []
        for line in self.log.read_text(errors="replace").splitlines():
            task, _, call = line.partition(" ")
            path = re.search(rf'[<"]{re.escape(str(self.store))}/?([^>"]*)[>"]', call)
            if path is not None:
                unfinished[task] = path[1]
            if line.endswith("(INJECTED)"):
                found.append(unfinished[task])
        return found


@contextmanager
def failing(
    broker: BrokerProcess, call: str, error: str, when: int, store: Path, trials: Trials
) -> Iterator[Failing]:
    """The `when`-th call on files of the store from now on fails, once. Skips the test without strace."""
    if shutil.which("strace") is None:
        trials.skip("R7", WHAT, "strace is not installed")
    # Without -P calls on sockets and the interpreter's own files would be hit as well.
    made = [*MADE, *TEMPORARY, *(f"commitlog/{number * SEGMENT:020d}" for number in range(60))]
    paths = sorted({*map(str, (store, *store.rglob("*"))), *(str(store / name) for name in made)})
    log = store.with_name(f"{store.name}.strace")
    command = ["strace", "-f", "-qq", "-y", "-o", str(log), "-e", f"trace={call}"]
    for path in paths:
        command += ["-P", path]
    command += ["-e", f"inject={call}:error={error}:when={when}", "-p", str(broker.process.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not _is_traced(broker.process.pid):
            assert time.monotonic() < deadline, "strace has not begun to trace"
            if tracer.poll() is not None:
                assert tracer.stderr is not None
                trials.skip("R7", WHAT, f"strace cannot trace here: {tracer.stderr.read().decode()[:200]}")
            time.sleep(0.02)
        yield Failing(log, store)
    finally:
        if tracer.poll() is None:
            tracer.terminate()
        tracer.wait(60)
        assert tracer.stderr is not None
        tracer.stderr.close()


def _is_traced(process_id: int) -> bool:
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False
    return "TracerPid:\t0" not in status


def descriptors(broker: BrokerProcess) -> int:
    """Without those of the log's segments, of which each has one."""
    count = 0
    for link in Path(f"/proc/{broker.process.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            count += "/commitlog/" not in os.readlink(link)
    return count


def send_all(client: RawClient, acknowledged: list[bytes], begin: int, count: int) -> bool:
    """False once the broker is gone."""
    for number in range(begin, begin + count):
        body = f"{number}-".encode() + bytes(9_000)
        try:
            reply = client.send("orders", body)
        except grpc.RpcError:
            return False
        if reply.status.code == v2.OK:
            acknowledged.append(body)
    return True


def check_all(address: str, acknowledged: list[bytes]) -> None:
    with grpc.insecure_channel(address) as channel:
        queries = stub_of(QUERIES, channel)
        found = b""
        for offset in range(len(acknowledged) + SENDS):
            place = {"topic": "orders", "queue_id": 0, "queue_offset": offset}
            try:
                request = query_pb2.GetMessageRequest(location=place)
                found += bytes(queries.GetMessage(request, timeout=60).records)
            except grpc.RpcError:
                break
    for body in acknowledged:
        assert body in found, f"{body[:9]!r} is lost"


@dataclass
class Life:
    """A store whose daemon continues after some failed calls, and ends by others."""

    store: Path
    acknowledged: list[bytes] = field(default_factory=list)
    sent: int = 0

    def run(self, numbers: list[int], trials: Trials) -> None:
        """The trials, those that end the daemon last; then everything is there."""
        waiting = sorted(numbers, key=lambda number: case_of(number)[0] in FATAL)
        while waiting:
            with self.broker() as broker, RawClient(broker.address) as client:
                if not self.sent:
                    create_topics(broker.address, {"orders": "NORMAL"}, queue_count=1)
                    assert self.send(client, 20)
                while waiting and broker.process.poll() is None:
                    number = waiting.pop(0)
                    with trials.one(number) as source:
                        self.fail(broker, client, *case_of(number), source, trials)
                if broker.process.poll() is None:
                    assert broker.stop() == ExitCode.CLEAN
        with self.broker() as broker:
            check_all(broker.address, self.acknowledged)

    def broker(self) -> AbstractContextManager[BrokerProcess]:
        settings = (f"mappedFileSizeCommitLog={SEGMENT}", "projection_flush_interval_ms=50")
        # strace fails system calls only, not a sync by the kernel itself.
        return running_broker(self.store, *settings, "flush_in_kernel_enable=false")

    def send(self, client: RawClient, count: int) -> bool:
        """False once the broker is gone."""
        self.sent += count
        return send_all(client, self.acknowledged, self.sent - count, count)

    def fail(
        self,
        broker: BrokerProcess,
        client: RawClient,
        call: str,
        error: str,
        source: random.Random,
        trials: Trials,
    ) -> None:
        when = source.randint(1, RARE_WHEN_MAX.get(call, WHEN_MAX))
        before = descriptors(broker)
        with failing(broker, call, error, when, self.store, trials) as failed:
            went_on = self.send_until_failed(client, failed)
        files = failed.files()
        assert files, f"the daemon made fewer than {when} calls: nothing has failed"
        given_up = error == "ENOSPC" and all(file in MADE or file.endswith(".tmp") for file in files)
        if (call in FATAL and not given_up) or (error == "EIO" and {TREES, LOG_DIRECTORY} & set(files)):
            assert not went_on or _ends(broker), f"the failed sync of {files} has ended nothing"
            assert broker.wait() == ExitCode.STORE_FAILED
            return
        assert went_on, broker.process.poll()
        assert self.is_accepted_again(client), "no messages are accepted any more"
        assert descriptors(broker) <= before + DESCRIPTORS_MORE_MAX
        check_all(broker.address, self.acknowledged)

    def send_until_failed(self, client: RawClient, failed: Failing) -> bool:
        """At least SENDS messages, and as many as it takes. False once the broker is gone."""
        for _ in range(0, SENDS_MAX, SENDS):
            if not self.send(client, SENDS):
                return False
            if failed.files():
                return True
        return True

    def is_accepted_again(self, client: RawClient) -> bool:
        """A call that met a full disk holds new messages back until the next check."""
        end = time.monotonic() + RESUMES_WITHIN_S
        while time.monotonic() < end:
            before = len(self.acknowledged)
            if self.send(client, 1) and len(self.acknowledged) > before:
                return True
            time.sleep(0.05)
        return False


def case_of(number: int) -> tuple[str, str]:
    """The call and its error."""
    return CASES[number // MOMENTS]


def _ends(broker: BrokerProcess) -> bool:
    """Whether the daemon ends, as it does at its next check for failed syncs."""
    try:
        broker.process.wait(30)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize("part", range(4))
def test_a_system_call_of_the_daemon_fails(trials: Trials, part: int, tmp_path: Path) -> None:
    numbers = list(trials.numbers(len(CASES) * MOMENTS, default=DEFAULT, part=part, parts=4))
    together = 1 if SOAK else len(numbers)
    for begin in range(0, len(numbers), together):
        Life(tmp_path / f"{begin}").run(numbers[begin : begin + together], trials)
    trials.count("R7", WHAT, len(numbers))


def test_a_segment_cut_under_a_running_daemon_costs_its_own_messages_alone(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    with running_broker(tmp_path, "mappedFileSizeCommitLog=131072") as broker:
        with RawClient(broker.address) as client:
            create_topics(broker.address, {"orders": "NORMAL"}, queue_count=1)
            assert send_all(client, acknowledged, 0, 20)  # in the second segment by now
            check_all(broker.address, acknowledged)  # it is mapped by now
            os.truncate(tmp_path / "commitlog" / f"{0:020d}", 65_536)
            served = 0
            refusals: list[str] = []
            with grpc.insecure_channel(broker.address) as channel:
                queries = stub_of(QUERIES, channel)
                for offset in range(20):
                    place = {"topic": "orders", "queue_id": 0, "queue_offset": offset}
                    request = query_pb2.GetMessageRequest(location=place)
                    try:
                        served += acknowledged[offset] in queries.GetMessage(request, timeout=60).records
                    except grpc.RpcError as failure:
                        refusals.append(str(failure.trailing_metadata()))
            assert 8 <= served < 20
            assert all("RECORD_DAMAGED" in refusal for refusal in refusals), refusals
            assert send_all(client, acknowledged, 20, 1)
        assert broker.process.poll() is None, "no signal has ended it"
