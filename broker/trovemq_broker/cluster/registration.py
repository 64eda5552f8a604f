"""Keeps this broker registered with every nameserver: one stream and one task for each.

States of one registration, as `RegistrationState` shows them:
connecting -> registered -stream ends-> waiting -next stream-> registered. name_taken: waiting, because
another live broker has the name. epoch_stale: the same, because a later leader of its replica group has it.
This node hears of that from the others, and steps down: a nameserver deposes no leader. A state lasts until
the nameserver answers the next stream.

With credentials each stream begins with a log-in, and its messages are signed.

A heartbeat is sent every interval, and at once when the topics changed; announced.py decides
which topics it has. Two heartbeats with all topics have a time between them that grows with their number.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Final

import grpc

from trovemq_broker.cluster.announced import Announced
from trovemq_broker.cluster.clock_difference import ClockDifference
from trovemq_broker.cluster.nameserver_session import (
    Attempts,
    Jitter,
    ReadCredentials,
    Sign,
    error_in,
    open_session,
)
from trovemq_broker.cluster.view import SPACED_FROM, BrokerView, spacing_s
from trovemq_daemon import clocks
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_daemon.settings import setting
from trovemq_proto import errors
from trovemq_proto.authentication.scram import ScramError
from trovemq_proto.channels import Channel, ChannelSettings, GrpcTransport, chosen_transport, open_channel
from trovemq_proto.errors import TroveError, from_wire
from trovemq_proto.tls import TlsOptions, read_tls
from trovemq_proto.tls_diagnosis import explain
from trovemq_proto.unanswered import why_unanswered
from trovemq_proto.v1 import route_pb2

LEAVE_TIME_MAX_S: Final = 1.0
REPLY_WAIT_INTERVALS: Final = 3
REPLY_WAIT_MIN_S: Final = 1.0
ALL_TOPICS_WAIT_S: Final = 30.0
"""How much longer a reply to many topics may take: after its start a nameserver reads those of all brokers,
one after the other."""

CLOCK_EVERY: Final = 20
"""Heartbeats of a stream between two comparisons of the clocks, the first one after the first."""

_REGISTER: Final = "/trovemq.v1.RegistrationService/Register"


NO_LOG_IN: Final = "checks no log-ins (no users_file), though this broker has credentials for it"

HEARTBEAT_SIZE_FINE: Final = 65_536
"""Every nameserver takes heartbeats of this size."""

_LASTING: Final = (
    errors.AUTHENTICATION_FAILED,
    errors.ACCESS_DENIED,
    errors.LIMIT_EXCEEDED,
    errors.REQUEST_ILLEGAL,
)
"""Refusals that an operator has to end. The nameserver is reachable."""


class RegistrationState(Enum):
    CONNECTING = "connecting"
    REGISTERED = "registered"
    WAITING = "waiting"
    NAME_TAKEN = "name_taken"
    EPOCH_STALE = "epoch_stale"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class RegistrationSettings:
    """How a broker registers at nameservers; times in milliseconds."""

    heartbeat_interval_ms: Annotated[int, setting("ms", 10, 60_000, rocketmq="brokerHeartbeatInterval")] = (
        3_000
    )
    """How often a heartbeat is sent to each nameserver."""
    registration_retry_min_ms: Annotated[int, setting("ms", 1, 60_000)] = 200
    """First wait before the broker registers again."""
    registration_retry_max_ms: Annotated[int, setting("ms", 1, 600_000)] = 5_000
    """Longest wait before the broker registers again."""


def registration_channels(
    tls: TlsOptions | None = None, transport: GrpcTransport | None = None
) -> ChannelSettings:
    """Settings of connections to nameservers. Reads the TLS files.

    Raises SettingsError for files that cannot be used.
    """
    try:
        return ChannelSettings(
            transport=chosen_transport(transport),
            tls=None if tls is None else read_tls(tls),
            connect_timeout_ms=20_000,
            reconnect_min_ms=1_000,
            reconnect_max_ms=5_000,
        )
    except TroveError as error:
        raise SettingsError(error.message) from None


class Registration:
    """The registration with one nameserver. `run()` until cancelled or `leave()`."""

    def __init__(
        self,
        nameserver: Address,
        view: BrokerView,
        settings: RegistrationSettings,
        jitter: Jitter,
        channels: ChannelSettings,
        credentials: ReadCredentials | None,
    ) -> None:
        self.nameserver = nameserver
        self.state = RegistrationState.CONNECTING
        self.detail = ""
        self.left_out = ""
        """Why the nameserver has not all topics in its routes; empty if it has."""
        self.checks_log_ins = True
        """Whether the nameserver checks the log-in, where this broker has credentials."""
        self.heartbeats = 0
        self.clock = ClockDifference(str(nameserver), clocks.wall_ms)
        self._view = view
        self._settings = settings
        self._jitter = jitter
        self._channels = channels
        self._credentials = credentials
        self._wake = asyncio.Event()
        self._leaving = False
        self._spaced_until = 0.0
        self._size_max = 0
        """Bytes of the largest heartbeat that the nameserver takes; 0: not known."""
        self._sent_size = 0
        """Of the last heartbeat."""

    def topics_changed(self) -> None:
        self._wake.set()

    def leave(self) -> None:
        """Unregisters and ends `run()` soon after."""
        self._leaving = True
        self._wake.set()

    async def run(self) -> None:
        """Registers again and again; returns after `leave()`."""
        attempts = Attempts(self._settings, self._jitter)
        async with open_channel(str(self.nameserver), self._channels) as channel:
            while True:
                beats_before = self.heartbeats
                await self._one_stream(channel)
                if self._leaving:
                    break
                await self._wait(attempts.pause_s(lasted=self.heartbeats > beats_before))
        self.state = RegistrationState.STOPPED

    async def _wait(self, seconds: float) -> None:
        """Waits for the back-off. A change of the topics does not shorten it, a stop does."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                while not self._leaving:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            pass

    async def _one_stream(self, channel: Channel) -> None:
        """Keeps one stream, from its log-in to its end. Never raises except when cancelled."""
        call: Any = None
        self._sent_size = 0
        try:
            timeout_s = self._reply_wait_s(leaving=False)
            session = await open_session(channel, self._credentials, timeout_s)
            self._note_log_in(is_checked=session.is_signed or self._credentials is None)
            metadata, sign = session.call(_REGISTER)
            call = channel.stream_stream(
                _REGISTER, response_deserializer=route_pb2.HeartbeatReply.FromString
            )(metadata=metadata)
            # a broken stream is noticed before the next heartbeat
            call.add_done_callback(lambda _: self._wake.set())
            await self._talk(channel, call, sign)
        except (SettingsError, ScramError) as error:
            self._refused(TroveError(errors.AUTHENTICATION_FAILED, str(error)))
        except TroveError as error:
            self._refused(error)
        except grpc.aio.AioRpcError as error:  # trovemq_rpc's errors are of this class, too
            await self._failed(error)
        except TimeoutError:
            self._lost("the nameserver does not answer")
        except asyncio.InvalidStateError:  # grpc.aio raises it for a write to a call that has ended
            await self._broken(call)
        finally:
            if call is not None:
                call.cancel()

    async def _broken(self, call: Any) -> None:
        """Handles a stream that ended during a write: with the nameserver's error, or for another reason."""
        error = error_in(await call.trailing_metadata())
        code = (await call.code()).name
        if error is not None:
            self._refused(error)
        elif not self._too_large(code):
            self._lost(why_unanswered(code, await call.details()))

    async def _failed(self, failure: grpc.aio.AioRpcError) -> None:
        error = error_in(failure.trailing_metadata())
        if error is not None:
            self._refused(error)
        elif not self._too_large(failure.code().name):
            await self._unreachable(why_unanswered(failure.code().name, failure.details()))

    def _too_large(self, code: str) -> bool:
        """Whether the nameserver refused a heartbeat for its size: the next one has fewer topics, and the
        reply to it the limit."""
        if code != "RESOURCE_EXHAUSTED" or self._sent_size <= HEARTBEAT_SIZE_FINE:
            return False
        self._size_max = max(self._sent_size // 2, HEARTBEAT_SIZE_FINE)
        text = f"a heartbeat of {self._sent_size:,} bytes is too large"
        self.state, self.detail = RegistrationState.WAITING, text
        get_logger().warning("nameserver.heartbeat_too_large", nameserver=self.nameserver, message=text)
        return True

    async def _unreachable(self, reason: str) -> None:
        """Checks whether TLS is the reason, once each time that the nameserver is lost."""
        if self.state is not RegistrationState.WAITING and not self._leaving:
            reason = await explain(str(self.nameserver), self._channels.tls) or reason
        self._lost(reason)

    async def _talk(self, channel: Channel, call: Any, sign: Sign) -> None:
        announced = Announced(self._view, self._size_max)
        for count in itertools.count():
            self._wake.clear()
            leaving = self._leaving
            heartbeat, all_topics = announced.next()
            heartbeat.leaving = leaving
            if all_topics:
                self._spaced_until = asyncio.get_running_loop().time() + spacing_s(all_topics)
            async with asyncio.timeout(self._reply_wait_s(leaving=leaving, topics=all_topics)):
                data = sign(heartbeat.SerializeToString())
                self._sent_size = len(data)
                await call.write(data)
                reply = self._answered(await call.read())
            if leaving:
                return
            announced.answered(reply)
            self._size_max = announced.size_max
            if all_topics:
                text = reply.left_out.message if reply.HasField("left_out") else ""
                self._note_left_out(text or _unsent_text(announced))
            if count % CLOCK_EVERY == 0:
                await self.clock.compare(channel, self._credentials)
            await self._until_next(announced)

    async def _until_next(self, announced: Announced) -> None:
        """Waits for the interval's end or a change; then, until all topics may be sent again if they are to
        be. A stop ends the wait."""
        if not announced.is_behind():
            try:
                async with asyncio.timeout(self._settings.heartbeat_interval_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
        left_s = self._spaced_until - asyncio.get_running_loop().time()
        if left_s > 0 and not self._leaving and announced.next_has_all():
            await self._wait(left_s)

    def _reply_wait_s(self, *, leaving: bool, topics: int = 0) -> float:
        """topics: those that the heartbeat has, if these are all topics."""
        if leaving:
            return LEAVE_TIME_MAX_S
        interval_s = self._settings.heartbeat_interval_ms / 1000
        more_s = ALL_TOPICS_WAIT_S if topics >= SPACED_FROM else 0.0
        return max(REPLY_WAIT_MIN_S, REPLY_WAIT_INTERVALS * interval_s) + more_s

    def _answered(self, reply: Any) -> route_pb2.HeartbeatReply:
        """The reply, which says that the heartbeat was accepted. Raises TroveError."""
        if not isinstance(reply, route_pb2.HeartbeatReply):  # the transport's end of the stream
            raise TroveError(errors.BROKER_UNREACHABLE, "the nameserver ended the stream")
        if reply.HasField("error"):
            raise from_wire(reply.error.symbol, reply.error.message, dict(reply.error.fields))
        self.heartbeats += 1
        if self.state != RegistrationState.REGISTERED:
            self.state, self.detail = RegistrationState.REGISTERED, ""
            get_logger().info("nameserver.registered", nameserver=self.nameserver)
        return reply

    def _note_log_in(self, *, is_checked: bool) -> None:
        """A nameserver without a file of users: logged once, until it has one."""
        if self.checks_log_ins and not is_checked:
            get_logger().warning("nameserver.no_log_in", nameserver=self.nameserver, message=NO_LOG_IN)
        self.checks_log_ins = is_checked

    def _note_left_out(self, text: str) -> None:
        """Topics that the nameserver leaves out of its routes: logged once, until it has them all again."""
        if text and not self.left_out:
            get_logger().error("nameserver.topics_left_out", nameserver=self.nameserver, message=text)
        elif self.left_out and not text:
            get_logger().info("nameserver.topics_complete", nameserver=self.nameserver)
        self.left_out = text

    def _refused(self, error: TroveError) -> None:
        if error.symbol == errors.BROKER_NAME_TAKEN.symbol:
            text = f"{error.message}. {error.spec.what_to_do}"
            self.state, self.detail = RegistrationState.NAME_TAKEN, text
            get_logger().error("nameserver.name_taken", nameserver=self.nameserver, message=text)
        elif error.spec is errors.EPOCH_STALE:
            self.state, self.detail = RegistrationState.EPOCH_STALE, error.message
            get_logger().warning("nameserver.epoch_stale", nameserver=self.nameserver, message=error.message)
        elif error.spec in _LASTING:
            self.state, self.detail = RegistrationState.WAITING, str(error)
            get_logger().error("nameserver.refused", nameserver=self.nameserver, message=str(error))
        else:
            self._lost(str(error))

    def _lost(self, reason: str) -> None:
        self.state, self.detail = RegistrationState.WAITING, reason
        if not self._leaving:
            get_logger().warning("nameserver.unreachable", nameserver=self.nameserver, message=reason)


def _unsent_text(announced: Announced) -> str:
    """Why topics are not in the routes that the nameserver would take, were its heartbeats larger."""
    if not announced.unsent:
        return ""
    return (
        f"{announced.unsent:,} topics are not in the routes of this nameserver: heartbeats with all have "
        f"more bytes than its limit heartbeat_size_max = {announced.size_max}; raise it there, or delete "
        "topics. Meanwhile clients find them only at the broker's own address"
    )


class Registrations:
    """The registrations with all nameservers. `start()` creates the tasks, `stop()` unregisters and ends them
    within about a second."""

    def __init__(
        self,
        nameservers: Sequence[Address],
        view: BrokerView,
        settings: RegistrationSettings,
        jitter: Jitter,
        channels: ChannelSettings | None = None,
        credentials: ReadCredentials | None = None,
    ) -> None:
        channels = channels or registration_channels()
        self.registrations = tuple(
            Registration(nameserver, view, settings, jitter, channels, credentials)
            for nameserver in nameservers
        )
        self._tasks: list[asyncio.Task[None]] = []
        view.add_change_listener(self._topics_changed)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(registration.run(), name=f"registration {registration.nameserver}")
            for registration in self.registrations
        ]

    async def stop(self) -> None:
        for registration in self.registrations:
            registration.leave()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=LEAVE_TIME_MAX_S + 0.5)
        for task in late:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def problem(self) -> str:
        """For readiness: the problem in a few words, or an empty text.

        A broker without a nameserver still serves clients that know its address, so only a taken name is a
        problem.
        """
        taken = [entry for entry in self.registrations if entry.state == RegistrationState.NAME_TAKEN]
        return "; ".join(f"{entry.nameserver}: {entry.detail}" for entry in taken)

    def warning(self) -> str:
        """For readiness: the nameservers that do not list this broker now, or an empty text."""
        missing = [
            f"not registered at {entry.nameserver}" + (f" ({entry.detail})" if entry.detail else "")
            for entry in self.registrations
            if entry.state != RegistrationState.REGISTERED
        ]
        return "; ".join(missing)

    def log_in_warning(self) -> str:
        """For readiness: the nameservers that do not check the log-in of this broker, or an empty text."""
        return "; ".join(
            f"{entry.nameserver} {NO_LOG_IN}" for entry in self.registrations if not entry.checks_log_ins
        )

    def leaving_out(self) -> list[str]:
        """The nameservers that have not all topics of this broker in their routes, and why."""
        return [
            f"{entry.nameserver}: {entry.left_out}"
            for entry in self.registrations
            if entry.state == RegistrationState.REGISTERED and entry.left_out
        ]

    def clock_warning(self) -> str:
        """For readiness: the nameservers whose clocks differ from this one, or an empty text."""
        return "; ".join(entry.clock.warning for entry in self.registrations if entry.clock.warning)

    def _topics_changed(self) -> None:
        for registration in self.registrations:
            registration.topics_changed()
