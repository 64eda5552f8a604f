"""Follows the routes of every nameserver: one stream and one task for each.

Each stream begins with a log-in, where there are credentials. When it ends, the nameserver's view counts as
broken, and the next stream begins after the pause of a registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from trovemq_broker.cluster.cluster_reply import BROKERS_MAX, TOPICS_MAX, ReplyReader, Routes
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.nameserver_session import (
    Attempts,
    BackOff,
    Jitter,
    ReadCredentials,
    error_in,
    log_in_for,
)
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.logging import get_logger
from trovemq_daemon.turns import Turns
from trovemq_proto.authentication.scram import ScramError
from trovemq_proto.channels import Channel, ChannelSettings, open_channel
from trovemq_proto.errors import TroveError
from trovemq_proto.reply_parts import PartJoiner
from trovemq_proto.unanswered import why_unanswered
from trovemq_proto.v1 import route_pb2

LOG_IN_S: Final = 10.0
FIRST_REPLY_S: Final = 0.5
"""How long a start waits for the first routes: clients that come at once get those of all brokers."""

_WATCH: Final = "/trovemq.v1.RouteService/WatchRoutes"


class RouteWatch:
    """Follows one nameserver. `run()` until cancelled."""

    def __init__(
        self,
        nameserver: Address,
        routes: ClusterRoutes,
        identity: tuple[str, str],
        settings: BackOff,
        jitter: Jitter,
        channels: ChannelSettings,
        credentials: ReadCredentials | None,
        turns: Turns,
        reported: asyncio.Event,
    ) -> None:
        """`identity`: the names of the cluster and of this broker. `reported` is set at each reply."""
        self.nameserver = nameserver
        self.replies = 0
        self._routes = routes
        self._identity = identity
        self._settings = settings
        self._jitter = jitter
        self._channels = channels
        self._credentials = credentials
        self._turns = turns
        self._reported = reported
        self._left_out = 0
        self._problem: str | None = None

    async def run(self) -> None:
        attempts, loop = Attempts(self._settings, self._jitter), asyncio.get_running_loop()
        lasting_s = self._settings.registration_retry_max_ms / 1000
        async with open_channel(str(self.nameserver), self._channels) as channel:
            while True:
                replies_before, began = self.replies, loop.time()
                problem = await self._one_stream(channel)
                self._broken(problem)
                lasted = self.replies > replies_before and loop.time() - began >= lasting_s
                await asyncio.sleep(attempts.pause_s(lasted=lasted))

    async def _one_stream(self, channel: Channel) -> str:
        """Follows one stream, from its log-in to its end. Returns why it ended."""
        call: Any = None
        try:
            metadata, sign = await log_in_for(channel, _WATCH, self._credentials, LOG_IN_S)
            request = route_pb2.WatchRoutesRequest(changes=True, removed_brokers=True, parts=True)
            call = channel.unary_stream(_WATCH)(sign(request.SerializeToString()), metadata=metadata)
            reader, joiner = ReplyReader(*self._identity), PartJoiner()
            async for message in call:
                if (reply := joiner.add(message)) is None:
                    continue
                self._report(await self._turns.run(reader.read(reply)))
                if reader.lacks_brokers:
                    return "there may be space for brokers that were left out, which only a new stream has"
        except (SettingsError, ScramError, TroveError) as error:
            return str(error)
        except grpc.aio.AioRpcError as error:  # trovemq_rpc's errors are of this class, too
            described = error_in(error.trailing_metadata())
            if described is not None:
                return str(described)
            return why_unanswered(error.code().name, error.details())
        except (DecodeError, ValueError) as error:
            return f"its routes are not readable: {error}"
        except TimeoutError:
            return "the nameserver does not answer"
        finally:
            if call is not None:
                call.cancel()
        return "the nameserver ended the stream"

    def _report(self, routes: Routes) -> None:
        if self.replies == 0 or self._problem is not None:
            get_logger().info("routes.followed", nameserver=self.nameserver, brokers=len(routes.brokers))
        self._problem = None
        self.replies += 1
        self._routes.report(str(self.nameserver), routes)
        self._reported.set()
        if routes.left_out and not self._left_out:
            get_logger().error(
                "routes.left_out",
                nameserver=self.nameserver,
                brokers=routes.left_out,
                message="RocketMQ's clients are not shown these brokers: there are too many brokers or topics"
                f" ({BROKERS_MAX} brokers, {TOPICS_MAX} topics of all of them are the limits)",
            )
        self._left_out = routes.left_out

    def _broken(self, problem: str) -> None:
        """The registration logs an unreachable nameserver; here the loss of the last one counts."""
        connected = self._routes.connected
        self._routes.broken(str(self.nameserver))
        if self._problem is None:
            if connected and not self._routes.connected:
                get_logger().warning(
                    "routes.kept",
                    brokers=len(self._routes.brokers),
                    message="no nameserver is followed: the last known brokers stay in the routes",
                )
            get_logger().info("routes.not_followed", nameserver=self.nameserver, message=problem)
        self._problem = problem


class RouteWatches:
    """The watches of all nameservers. `start()` creates the tasks, `stop()` ends them."""

    def __init__(
        self,
        nameservers: Sequence[Address],
        routes: ClusterRoutes,
        identity: tuple[str, str],
        settings: BackOff,
        jitter: Jitter,
        channels: ChannelSettings,
        credentials: ReadCredentials | None,
        turns: Turns,
    ) -> None:
        self._reported = asyncio.Event()
        self.watches = tuple(
            RouteWatch(
                nameserver,
                routes,
                identity,
                settings,
                jitter,
                channels,
                credentials,
                turns,
                self._reported,
            )
            for nameserver in nameservers
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Returns when the first routes are there, after FIRST_REPLY_S at the latest."""
        self._tasks = [
            asyncio.create_task(watch.run(), name=f"routes {watch.nameserver}") for watch in self.watches
        ]
        if self._tasks:
            try:
                async with asyncio.timeout(FIRST_REPLY_S):
                    await self._reported.wait()
            except TimeoutError:
                pass

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
