"""Keeps this broker registered with nameservers of RocketMQ itself, by remoting: one connection and one task
for each, with a broker id of 0.

| request                  | when                                                                         |
|--------------------------|------------------------------------------------------------------------------|
| REGISTER_BROKER (103)    | at first, every 30 s, and soon after a change: it has all topics             |
| UNREGISTER_BROKER (104)  | at the end; the nameserver also drops a broker whose connection ends         |

RocketMQ reads the topics again only if their data version differs from the last one. It ignores a first
registration of a single topic: TopicsForRocketmq has the names of cluster and broker in any case. If another
address has this broker's name, the one with the higher stateVersion stays: that of a replica group's leader
is its epoch.

Facts: org.apache.rocketmq.namesrv.routeinfo.RouteInfoManager, 5.4.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from trovemq_broker.cluster.nameserver_session import Attempts, BackOff, Jitter
from trovemq_broker.cluster.registration import RegistrationState
from trovemq_broker.cluster.view import spacing_s
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import get_logger
from trovemq_proto.remoting.bodies import MASTER
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.frame import FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import Header
from trovemq_proto.remoting.json_text import json_text

INTERVAL_S: Final = 30.0
"""A nameserver drops a broker of which it has heard nothing for 120 s."""
ANSWER_S: Final = 10.0
LEAVE_S: Final = 1.0
READ_SIZE: Final = 1 << 16
VERSION: Final = 493
"""Index of RocketMQ's release 5.4.0."""


class RegisteredBroker(NamedTuple):
    """`epoch`: of the replica group that it leads; 0 if there is none."""

    cluster: str
    name: str
    address: str
    epoch: int

    def fields(self) -> dict[str, str]:
        return {
            "brokerAddr": self.address,
            "brokerId": MASTER,
            "brokerName": self.name,
            "clusterName": self.cluster,
        }


class TopicsAnnounced(Protocol):
    """The broker and its topics, as they are now."""

    def broker(self) -> RegisteredBroker: ...

    def mark(self) -> object:
        """Differs after each change of table()."""
        ...

    def table(self) -> Mapping[str, object]:
        """RocketMQ's TopicConfig by name."""
        ...


class RocketmqRegistration:
    """With one nameserver. `started_ms`: of this process, the timestamp of its data versions."""

    def __init__(
        self,
        nameserver: Address,
        announced: TopicsAnnounced,
        back_off: BackOff,
        jitter: Jitter,
        started_ms: int,
    ) -> None:
        self.nameserver: Final = nameserver
        self.state = RegistrationState.CONNECTING
        self.detail = ""
        self.accepted = 0
        """Registrations that the nameserver has accepted."""
        self._announced = announced
        self._attempts = Attempts(back_off, jitter)
        self._started_ms = started_ms
        self._mark: object = None
        self._version = 0
        self._opaques = count(1)
        self._wake = asyncio.Event()
        self._leave = asyncio.Event()

    def changed(self) -> None:
        self._wake.set()

    def leave(self) -> None:
        """Unregisters and ends `run()` soon after."""
        self._leave.set()
        self._wake.set()

    async def run(self) -> None:
        """Registers again and again; returns after `leave()`."""
        while True:
            before = self.accepted
            try:
                await self._one_connection()
            except (OSError, ValueError) as error:
                self._lost(str(error) or "the nameserver does not answer")
            if self._leave.is_set():
                break
            await self._pause(self._attempts.pause_s(lasted=self.accepted > before))
        self.state = RegistrationState.STOPPED

    async def _one_connection(self) -> None:
        """OSError, TimeoutError; ValueError: the topics do not fit into a frame."""
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(self.nameserver.host, self.nameserver.port)
        answers: asyncio.Queue[Header | None] = asyncio.Queue()
        reading = asyncio.create_task(self._read(reader, answers), name="rocketmq nameserver")
        try:
            while not self._leave.is_set():
                self._wake.clear()
                topics_count = await self._register(writer, answers)
                await self._pause(spacing_s(topics_count))
                await self._until_next(reading)
            async with asyncio.timeout(LEAVE_S):
                await self._ask(writer, answers, RequestCode.UNREGISTER_BROKER, self._broker_fields())
        finally:
            reading.cancel()
            writer.close()

    async def _read(self, reader: asyncio.StreamReader, answers: asyncio.Queue[Header | None]) -> None:
        """The headers of answers, and None at the end of the connection."""
        splitter = FrameSplitter()
        with suppress(OSError, FrameError):
            while data := await reader.read(READ_SIZE):
                for frame in splitter.feed(memoryview(data)):
                    if (header := frame.header()).is_response:
                        answers.put_nowait(header)
        answers.put_nowait(None)
        self._wake.set()

    async def _register(self, writer: asyncio.StreamWriter, answers: asyncio.Queue[Header | None]) -> int:
        """Returns the number of topics."""
        broker, mark = self._announced.broker(), self._announced.mark()
        if mark != self._mark:
            self._mark = mark
            self._version += 1
        topics = self._announced.table()
        version = {
            "counter": self._version,
            "stateVersion": broker.epoch,
            "timestamp": self._started_ms,
        }
        wrapper = {
            "dataVersion": version,
            "topicConfigTable": topics,
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": {},
        }
        body = json_text({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
        fields = {
            **self._broker_fields(),
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
            "compressed": "false",
            "enableActingMaster": "false",
            "haServerAddr": broker.address,
        }
        async with asyncio.timeout(ANSWER_S):
            await self._ask(writer, answers, RequestCode.REGISTER_BROKER, fields, body)
        self.accepted += 1
        if self.state is not RegistrationState.REGISTERED:
            self.state, self.detail = RegistrationState.REGISTERED, ""
            get_logger().info("rocketmq_nameserver.registered", nameserver=self.nameserver)
        return len(topics)

    def _broker_fields(self) -> dict[str, str]:
        return self._announced.broker().fields()

    async def _ask(
        self,
        writer: asyncio.StreamWriter,
        answers: asyncio.Queue[Header | None],
        code: RequestCode,
        fields: dict[str, str],
        body: bytes = b"",
    ) -> None:
        """Returns when the nameserver has answered with success. OSError."""
        opaque = next(self._opaques)
        writer.write(encode_frame(Header(code, opaque, version=VERSION, fields=fields), body))
        await writer.drain()
        while (answer := await answers.get()) is None or answer.opaque != opaque:
            if answer is None:
                raise ConnectionError("the nameserver closed the connection")
        if answer.code != ResponseCode.SUCCESS:
            raise ConnectionError(f"the nameserver answers {code.name} with {answer.code}: {answer.remark}")

    async def _until_next(self, reading: asyncio.Task[None]) -> None:
        """Waits for the interval's end, a change or the stop. OSError: the connection has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S):
                await self._wake.wait()
        if reading.done():
            raise ConnectionError("the nameserver closed the connection")

    async def _pause(self, seconds: float) -> None:
        """A change does not shorten it, a stop does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leave.wait()

    def _lost(self, reason: str) -> None:
        self.state, self.detail = RegistrationState.WAITING, reason
        if not self._leave.is_set():
            get_logger().warning("rocketmq_nameserver.lost", nameserver=self.nameserver, message=reason)


class RocketmqRegistrations:
    """The registrations with all nameservers of RocketMQ. `start()` creates the tasks, `stop()` unregisters
    and ends them."""

    def __init__(
        self,
        nameservers: Sequence[Address],
        announced: TopicsAnnounced,
        back_off: BackOff,
        jitter: Jitter,
        started_ms: int,
    ) -> None:
        self.registrations: Final = tuple(
            RocketmqRegistration(one, announced, back_off, jitter, started_ms) for one in nameservers
        )
        self._tasks: list[asyncio.Task[None]] = []

    def changed(self) -> None:
        """Call after a change of the topics."""
        for one in self.registrations:
            one.changed()

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(one.run(), name=f"rocketmq registration {one.nameserver}")
            for one in self.registrations
        ]

    async def stop(self) -> None:
        for one in self.registrations:
            one.leave()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=LEAVE_S + 0.5)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def warning(self) -> str:
        """For readiness: the nameservers that do not list this broker now, or an empty text."""
        return "; ".join(
            f"not registered at {one.nameserver}" + (f" ({one.detail})" if one.detail else "")
            for one in self.registrations
            if one.state is not RegistrationState.REGISTERED
        )
