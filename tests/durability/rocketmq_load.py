"""Producers and consumers by RocketMQ's calls, and the promises that a broker has to keep while it is killed.

Each of three topics (plain, delayed, transactional messages) has one producer and one consumer. A producer
never repeats a send. So a message that was acknowledged is there once, one that was rolled back is not there,
and one whose send or commit broke may be. A consumer acknowledges most messages, makes some visible soon, and
forgets some. Acknowledgements, and the ends of delays, are events, which are written soon, without waiting
for a sync. So a settled message is delivered again, and a delayed one is there twice, only if a kill followed
within EVENTS_S.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

from tests.support.rocketmq_client import RawClient, create_topics
from trovemq.testing import BrokerProcess
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

TOPICS: Final = {"orders": "NORMAL", "later": "DELAY", "deals": "TRANSACTION"}
GROUP: Final = "workers"
EVENTS_S: Final = 1.0
"""Events are written within 100 ms, as long as the machine is not busy."""
SETTINGS: Final = {"new_group_start": "begin", "invisible_min_ms": 500}
INVISIBLE_S: Final = 2.0
DELAY_MS_MAX: Final = 800
BATCH_MAX: Final = 6
SETTLED_SHARE: Final = 0.8
WAIT_S_MAX: Final = 240.0


class Ledger:
    """The promises of the broker, and the faults that deliveries show. Threads share it. Times: seconds of
    the machine's clock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.acknowledged: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.due_at: dict[bytes, float] = {}
        self.settled_at: dict[bytes, tuple[float, float]] = {}
        """Of each, when its acknowledgement was sent and answered."""
        self.places: dict[bytes, dict[tuple[str, int, int], float]] = {}
        self.kills: list[float] = []
        self.faults: list[str] = []

    def delivered(self, one: Any, now: float) -> None:
        """One message of a receive."""
        body, system = one.body, one.system_properties
        places = self.places.setdefault(body, {})
        places.setdefault((one.topic.name, system.queue_id, system.queue_offset), now)
        due_at = self.due_at.get(body, 0.0)
        if len(places) > 1 and not (due_at and self._was_killed(due_at, min(places.values()))):
            self.faults.append(f"{body!r} is stored at {list(places)}")
        if body in self.rolled_back:
            self.faults.append(f"{body!r} was rolled back, and is delivered")
        if now < due_at:
            self.faults.append(f"{body!r} is delivered before its time")
        settled_at = self.settled_at.pop(body, None)
        if settled_at is not None and len(places) == 1 and not self._was_killed(*settled_at):
            self.faults.append(
                f"{body!r} was settled {now - settled_at[1]:.3f} s ago, and is delivered again"
            )

    def _was_killed(self, first: float, last: float) -> bool:
        """Whether a kill came after `first`, and at most EVENTS_S after `last`."""
        return any(first <= kill <= last + EVENTS_S for kill in self.kills)

    @property
    def missing(self) -> set[bytes]:
        """The acknowledged messages that are not settled."""
        return self.acknowledged - self.settled_at.keys()

    @property
    def line_count(self) -> int:
        return len(self.acknowledged) + len(self.settled_at)


class Load:
    """Six threads under a broker that may be killed. `drain` ends the producers."""

    def __init__(self, address: str, source: random.Random) -> None:
        create_topics(address, TOPICS)
        self.ledger = Ledger()
        self._address = address
        self._up = threading.Event()
        self._up.set()
        self._producing = self._consuming = True
        self._threads = [
            threading.Thread(target=self._work, args=(work, topic, random.Random(source.random())))
            for topic in TOPICS
            for work in (self._produce, self._consume)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._producing = self._consuming = False
            self._up.set()
            for thread in self._threads:
                thread.join(WAIT_S_MAX)

    def kill(self, broker: BrokerProcess) -> None:
        """Kills the broker under the load, and starts it."""
        self._up.clear()
        broker.kill()
        self.ledger.kills.append(time.time())
        broker.start()
        self._up.set()

    def wait_for_lines(self, count: int) -> None:
        """Returns when that number of further messages is acknowledged or settled."""
        count += self.ledger.line_count
        self._wait(lambda: self.ledger.line_count >= count, "the load does not continue")

    def drain(self) -> None:
        """Returns when every acknowledged message was delivered and settled."""
        self._producing = False
        self._wait(lambda: not self.ledger.missing, "acknowledged messages are lost")

    def _wait(self, is_done: Any, problem: str) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_done():
            assert self.ledger.faults == [], self.ledger.faults[:5]
            assert time.monotonic() < deadline, f"{problem}: {sorted(self.ledger.missing)[:5]}"
            time.sleep(0.002)

    def _work(self, work: Any, topic: str, source: random.Random) -> None:
        """Steps of one thread. A call that a kill breaks has an unknown outcome; then it connects again."""
        try:
            while self._consuming:
                self._up.wait()
                with RawClient(self._address) as client:
                    try:
                        while work(client, topic, source):
                            pass
                    except grpc.RpcError:
                        continue
                if not self._producing and work == self._produce:
                    return
        except Exception as error:
            self.ledger.faults.append(repr(error))

    def _produce(self, client: RawClient, topic: str, source: random.Random) -> bool:
        """One send."""
        bodies = [b"%s-%016x" % (topic.encode(), source.getrandbits(64))]
        if topic == "orders":
            bodies += [b"%s.%d" % (bodies[0], number) for number in range(source.randrange(BATCH_MAX))]
            self._note(bodies, client.send(topic, *bodies).entries)
        elif topic == "later":
            due_ms = int(time.time() * 1_000) + source.randrange(DELAY_MS_MAX)
            self.ledger.due_at[bodies[0]] = due_ms / 1_000
            reply = client.send(topic, *bodies, deliver_at_ms=due_ms, message_type=v2.DELAY)
            self._note(bodies, reply.entries)
        else:
            (half,) = client.send(topic, *bodies, message_type=v2.TRANSACTION).entries
            assert half.status.code == v2.OK, half
            commits = source.random() < SETTLED_SHARE
            if not commits:
                self.ledger.rolled_back.update(bodies)
            ended = client.end_transaction(topic, half, v2.COMMIT if commits else v2.ROLLBACK)
            if commits:
                self._note(bodies, [ended])
        return self._producing

    def _note(self, bodies: Sequence[bytes], answers: Sequence[Any]) -> None:
        for body, answer in zip(bodies, answers, strict=True):
            assert answer.status.code == v2.OK, answer
            with self.ledger.lock:
                self.ledger.acknowledged.add(body)

    def _consume(self, client: RawClient, topic: str, source: random.Random) -> bool:
        """One receive, and the settlement of its messages."""
        messages = client.receive(GROUP, topic, count=16, invisible_s=INVISIBLE_S, poll_s=1)
        with self.ledger.lock:
            for one in messages:
                self.ledger.delivered(one, time.time())
        chosen = [one for one in messages if not self._producing or source.random() < SETTLED_SHARE]
        for one in messages:
            if one not in chosen and source.random() < 0.5:
                client.change_invisible(GROUP, one, 1.0)
        if chosen:
            sent_at = time.time()
            reply = client.acknowledge(GROUP, chosen)
            with self.ledger.lock:
                for one, entry in zip(chosen, reply.entries, strict=True):
                    if entry.status.code == v2.OK:
                        self.ledger.settled_at[one.body] = (sent_at, time.time())
        return self._consuming
