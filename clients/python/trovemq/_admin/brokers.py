"""Brokers as processes: drain, condition, settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from trovemq._admin.removal import remainders
from trovemq._common.arguments import check_number, check_text
from trovemq._net.all_brokers import NOT_ANSWERED, ask_brokers, outcomes_of
from trovemq._net.connections import ConnectionPool
from trovemq._wire.brokers import BrokerCalls
from trovemq._wire.nameservers import forget
from trovemq.models.all_brokers import BrokerAnswers
from trovemq.models.broker import BrokerCondition, DrainStatus, Remainder, SettingDescription
from trovemq.models.cluster import BrokerInfo, ClusterState
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

AWAITED_S: Final = 0.25

_Result = TypeVar("_Result")


class Brokers:
    """Administration of brokers as processes; `Client.admin.brokers`. All calls raise TroveError."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    async def drain(
        self, broker: str | None = None, *, grace_ms: int = 10_000, stop_wait_max_ms: int | None = None
    ) -> DrainStatus:
        """Takes a broker out of the routes for writing, so that new messages go to the others. Reads and
        acknowledgements continue. Returns at once. A restart of the broker ends the drain.

        Args:
            broker: The broker; needed if there are several.
            grace_ms: How long new messages are still stored, while clients learn of the new routes. After
                that they are refused, and clients send them to other brokers.
            stop_wait_max_ms: The broker stops when it is drained; this is how long it waits for open atomic
                transactions. None: it does not stop.

        Raises:
            TroveError: BROKER_AMBIGUOUS, REQUEST_ILLEGAL (a time of more than an hour), ACCESS_DENIED, …
        """
        check_number("grace_ms", grace_ms)
        if stop_wait_max_ms is not None:
            check_number("stop_wait_max_ms", stop_wait_max_ms)
        return await self._calls_of(broker).drain(grace_ms, stop_wait_max_ms)

    async def undrain(self, broker: str | None = None) -> DrainStatus:
        """Lets the broker take new messages again. Returns its state now. Raises TroveError BROKER_NOT_FOUND,
        BROKER_AMBIGUOUS, …"""
        return await self._calls_of(broker).undrain()

    async def drain_status(self, broker: str | None = None) -> DrainStatus:
        """How far the drain is. Raises TroveError BROKER_NOT_FOUND, BROKER_AMBIGUOUS, …"""
        return await self._calls_of(broker).drain_status()

    async def condition(self, broker: str | None = None) -> BrokerCondition:
        """The condition of a broker as a process. Raises TroveError BROKER_NOT_FOUND, BROKER_AMBIGUOUS, …"""
        return await self._calls_of(broker).condition()

    async def remainders(self, broker: str) -> tuple[Remainder, ...]:
        """The losses of a removal of the broker now. Raises TroveError BROKER_NOT_FOUND; ACCESS_DENIED if the
        user does not see all of its topics."""
        return await remainders(self._pool, self._pool.routes.broker(broker))

    async def awaited(self, broker: str, *, within_s: float = 10.0) -> ClusterState:
        """The routes, fetched now, as soon as they have the broker, live or lost. A nameserver that has just
        started does not know all brokers yet: if it is not there, waits until they have had 10 s.

        Args:
            broker: The broker.
            within_s: Waits no longer than this.

        Raises:
            TroveError: BROKER_UNREACHABLE, …
        """
        check_text("broker", broker)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within_s
        while True:
            left_s = min(self._pool.filling_s, ends_at - loop.time())
            await self._pool.refresh()
            state = self._pool.routes.state
            is_known = state.broker(broker) is not None or any(one.name == broker for one in state.lost)
            if is_known or left_s <= 0:
                return state
            await asyncio.sleep(min(AWAITED_S, left_s))

    async def forget(self, broker: str) -> BrokerAnswers[str]:
        """Has the nameservers forget a lost broker that does not come back. Nothing is done to a live one.

        Returns:
            The nameservers that had lost it, empty if none had; `pending` names those that did not answer, or
            that are too old for this call.

        Raises:
            TroveError: BROKER_UNREACHABLE if no nameserver answers; ACCESS_DENIED, …
        """
        servers = self._pool.servers
        outcomes = await outcomes_of(forget(self._pool.server(one), broker) for one in servers)
        pending, forgotten, without_it = [], [], []
        for server, outcome in zip(servers, outcomes, strict=True):
            if not isinstance(outcome, TroveError):
                forgotten += [server] if outcome else []
            elif outcome.spec in NOT_ANSWERED:
                pending.append(server)
            elif outcome.fields.get("grpc_status") == "UNIMPLEMENTED":
                without_it.append(server)  # a broker, which loses no others, or an older nameserver
            else:
                raise outcome
        if forgotten:
            pending += without_it
        if len(pending) == len(servers):
            raise next(one for one in outcomes if isinstance(one, TroveError))
        self._pool.routes.lost.pop(broker, None)
        return BrokerAnswers(forgotten, pending=pending)

    async def settings(self, *names: str, broker: str | None = None) -> BrokerAnswers[SettingDescription]:
        """The settings of all brokers, or of one.

        Args:
            names: Our names or RocketMQ's; without names, all settings.
            broker: The broker; None for all.

        Raises:
            TroveError: REQUEST_ILLEGAL (an unknown name), ACCESS_DENIED, …
        """
        lists = await self._all(broker, lambda calls: calls.settings(names))
        return lists.of(one for settings in lists for one in settings)

    async def set_setting(
        self, name: str, value: str, *, broker: str | None = None
    ) -> BrokerAnswers[SettingDescription]:
        """Changes a setting that needs no restart, at once and until the broker restarts. To keep the value,
        write it into the broker's configuration, too.

        Args:
            name: Our name or RocketMQ's.
            value: As in a file or on a command line: `64MiB`, `5s`, `true`.
            broker: The broker; None for all.

        Raises:
            TroveError: REQUEST_ILLEGAL (an unknown name, a value out of range, a setting that needs a
                restart), ACCESS_DENIED, …
        """
        return await self._all(broker, lambda calls: calls.set_setting(name, value), change=True)

    async def _all(
        self,
        name: str | None,
        ask: Callable[[BrokerCalls], Awaitable[_Result]],
        *,
        change: bool = False,
    ) -> BrokerAnswers[_Result]:
        return await ask_brokers(
            self._pool,
            self._pool.routes.brokers(name),
            lambda info: ask(BrokerCalls(self._pool.connection(info))),
            broker=name,
            change=change,
        )

    def _calls_of(self, name: str | None) -> BrokerCalls:
        return BrokerCalls(self._pool.connection(self._info(name)))

    def _info(self, name: str | None) -> BrokerInfo:
        brokers = self._pool.routes.brokers(name)
        if len(brokers) > 1:
            names = ", ".join(info.name for info in brokers)
            raise TroveError(errors.BROKER_AMBIGUOUS, f"name one of {names}", brokers=names)
        return brokers[0]
