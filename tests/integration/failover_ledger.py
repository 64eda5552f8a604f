"""A ledger of the messages that clients of a replica group sent and received, over failovers.

| part         | while it runs                                      | at the end                             |
|--------------|----------------------------------------------------|----------------------------------------|
| plain        | numbered sends to a topic, a group consumes them   | each was consumed, none is there twice |
| order        | numbers of three message groups, two members       | in order, one of a group at a time     |
| timers       | delayed messages                                   | each was delivered, none early         |
| transactions | half messages: committed, rolled back or left open | only the committed ones are read       |
| atomic       | one message to each of two topics                  | both topics have the same messages     |

A send that ends with an error is open: it may be there or not. An acknowledged one has to be there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress

import trovemq
from trovemq import TransactionResolution
from trovemq.received import ReceivedMessage
from trovemq_proto.errors import TroveError

TOPICS = {
    "plain": "NORMAL",
    "steps": "FIFO",
    "later": "DELAY",
    "deals": "TRANSACTION",
    "sales": "NORMAL",
    "stock": "NORMAL",
}
MESSAGE_GROUPS = 3
WORK_S = 0.005
PAUSE_S = 0.03
"""Between two messages of one sender: the machine has other work."""
READ_S_MAX = 90.0
AFTERWARDS_S = 2.0


class FailoverLedger:
    """`early_s`: timers may be that early, because clocks are off."""

    def __init__(self, servers: Sequence[str], early_s: float = 0.0) -> None:
        self._servers = list(servers)
        self._early_s = early_s
        self._stop = asyncio.Event()
        self.acknowledged: dict[str, set[bytes]] = {name: set() for name in TOPICS}
        self.refused: dict[str, set[bytes]] = {name: set() for name in TOPICS}
        """Never to be read: rolled back."""
        self.read: dict[str, set[bytes]] = {name: set() for name in TOPICS}
        self.faults: list[str] = []
        self.open = 0
        self.longest_s = 0.0
        self.sends: list[tuple[float, float]] = []
        """When each acknowledged send began and ended (time.monotonic)."""
        self._newest_of: dict[str, int] = {}
        self._at_work: dict[str, str] = {}

    # --- the run --------------------------------------------------------------------------------------
    async def run(self, disturb: Callable[[], Awaitable[None]]) -> None:
        """Until `disturb` has returned, and everything that was acknowledged is read."""
        async with trovemq.connect(self._servers) as client, trovemq.connect(self._servers) as other:
            for name, kind in TOPICS.items():
                options = {"deduplicate": "1h"} if name in ("plain", "steps") else None
                await client.admin.create_topic(name, 2, message_type=kind, options=options)
            # It answers the checks of the broker until all is read.
            async with client.producer("deals", checker=_decision) as deals, asyncio.TaskGroup() as readers:
                reading = [
                    readers.create_task(one)
                    for one in (
                        *(self._read(client, name) for name in TOPICS if name != "steps"),
                        self._read_in_order(client, "one"),
                        self._read_in_order(other, "two"),
                    )
                ]
                async with asyncio.TaskGroup() as senders:
                    for work in (self._plain, self._steps, self._later, self._atomic):
                        senders.create_task(work(client))
                    senders.create_task(self._deals(deals))
                    senders.create_task(self._left_open())
                    await disturb()
                    await asyncio.sleep(AFTERWARDS_S)
                    self._stop.set()
                await self._until_read()
                for task in reading:
                    task.cancel()
            await self._check_stored(client)
        self._check()

    async def _until_read(self) -> None:
        deadline = time.monotonic() + READ_S_MAX
        while any(self.acknowledged[name] - self.read[name] for name in TOPICS):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(0.1)
        await asyncio.sleep(AFTERWARDS_S)  # for messages that must not come

    async def _paced(self) -> AsyncGenerator[int, None]:
        number = 0
        while not self._stop.is_set():
            yield number
            number += 1
            await asyncio.sleep(PAUSE_S)

    async def _sent(self, topic: str, body: bytes, send: Awaitable[object]) -> None:
        began = time.monotonic()
        try:
            await send
        except TroveError:
            self.open += 1
            return
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.sends.append((began, time.monotonic()))
        self.acknowledged[topic].add(body)

    # --- senders --------------------------------------------------------------------------------------
    async def _plain(self, client: trovemq.Client) -> None:
        async with client.producer("plain", idempotent=True) as producer:
            async for number in self._paced():
                body = b"%d" % number
                await self._sent("plain", body, producer.send(body, keys="k"))

    async def _steps(self, client: trovemq.Client) -> None:
        async with client.producer("steps", idempotent=True) as producer:
            async for number in self._paced():
                body, group = b"%d" % number, f"g{number % MESSAGE_GROUPS}"
                await self._sent("steps", body, producer.send(body, message_group=group))

    async def _later(self, client: trovemq.Client) -> None:
        async with client.producer("later") as producer:
            async for number in self._paced():
                body = b"%d" % number
                await self._sent("later", body, producer.send(body, deliver_after=0.1 + number % 20 / 10))

    async def _deals(self, producer: trovemq.Producer) -> None:
        async for number in self._paced():
            kept = number % 2 == 0
            body = b"%s %d" % (b"keep" if kept else b"drop", number)
            if not kept:
                self.refused["deals"].add(body)
            transaction = producer.transaction(check_after_ms=2_000)
            try:
                await transaction.__aenter__()
                await transaction.send(body)
            except TroveError:
                self.open += 1
                continue
            if kept:
                self.acknowledged["deals"].add(body)  # its end is its decision, or the check's
            with suppress(TroveError):  # the broker asks
                await (transaction.commit() if kept else transaction.rollback())

    async def _left_open(self) -> None:
        """Half messages whose producer is gone: another one is asked, at any leader."""
        async for number in self._paced():
            body = b"%s left %d" % (b"keep" if number % 2 else b"drop", number)
            try:
                async with trovemq.connect(self._servers) as gone, gone.producer("deals") as producer:
                    transaction = producer.transaction(check_after_ms=1_000)
                    await transaction.__aenter__()
                    await transaction.send(body)
            except TroveError:
                self.open += 1
                continue
            (self.acknowledged if number % 2 else self.refused)["deals"].add(body)
            await asyncio.sleep(1)

    async def _atomic(self, client: trovemq.Client) -> None:
        async for number in self._paced():
            body = b"%d" % number
            try:
                async with client.transaction() as transaction:
                    await transaction.send("sales", body)
                    await transaction.send("stock", body)
            except TroveError:
                self.open += 1
                continue
            self.acknowledged["sales"].add(body)
            self.acknowledged["stock"].add(body)

    # --- readers --------------------------------------------------------------------------------------
    async def _read(self, client: trovemq.Client, topic: str) -> None:
        async with client.subscribe(topic, f"readers-{topic}", start="earliest") as subscription:
            async for message in subscription:
                if topic == "later":
                    self._check_time(message)
                self.read[topic].add(message.body)
                async with message:
                    pass

    def _check_time(self, message: ReceivedMessage) -> None:
        early_s = (message.deliver_timestamp or 0) / 1000 - time.time()
        if early_s > self._early_s + 0.05:
            self.faults.append(f"later: {message.body!r} came {early_s:.2f} s early")

    async def _read_in_order(self, client: trovemq.Client, member: str) -> None:
        async with client.subscribe("steps", "readers-steps", start="earliest") as subscription:
            async for message in subscription:
                group, number = str(message.message_group), int(message.body)
                if (holder := self._at_work.get(group)) is not None:
                    self.faults.append(f"steps: {number} of {group} came to {member}, and {holder} works")
                self._at_work[group] = f"{member} on {number}"
                async with message:
                    await asyncio.sleep(WORK_S)
                    self._note_order(group, number)
                    del self._at_work[group]

    def _note_order(self, group: str, number: int) -> None:
        """A message may be delivered again; a new one comes after all before it."""
        body = b"%d" % number
        if body in self.read["steps"]:
            return
        if number < self._newest_of.get(group, -1):
            self.faults.append(f"steps: {number} of {group} after {self._newest_of[group]}")
        self._newest_of[group] = number
        self.read["steps"].add(body)

    # --- the end --------------------------------------------------------------------------------------
    async def _check_stored(self, client: trovemq.Client) -> None:
        for name in ("plain", "steps"):
            count = sum(one.max_offset - one.min_offset for one in await client.queue_offsets(name))
            if count != len(self.read[name]):
                self.faults.append(f"{name}: {count} are stored, {len(self.read[name])} were read")

    def _check(self) -> None:
        for name in TOPICS:
            if missing := self.acknowledged[name] - self.read[name]:
                self.faults.append(f"{name}: {len(missing)} missing, as {sorted(missing)[:3]}")
            if wrong := self.refused[name] & self.read[name]:
                self.faults.append(f"{name}: {len(wrong)} were rolled back, as {sorted(wrong)[:3]}")
        if halves := self.read["sales"] ^ self.read["stock"]:
            self.faults.append(f"atomic: one half of {len(halves)}, as {sorted(halves)[:3]}")

    def resumed_s(self, killed_s: float, ended_s: float) -> float:
        """From a kill to the first acknowledgement of a send that began after the end of the process."""
        return min(end for began, end in self.sends if began >= ended_s) - killed_s

    def summary(self) -> str:
        counts = ", ".join(f"{name} {len(found)}" for name, found in self.acknowledged.items())
        return f"{counts}; {self.open} open, longest send {self.longest_s:.2f} s"


async def _decision(message: ReceivedMessage) -> TransactionResolution:
    kept = message.body.startswith(b"keep")
    return TransactionResolution.COMMIT if kept else TransactionResolution.ROLLBACK
