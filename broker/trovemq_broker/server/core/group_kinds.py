"""Which kind of client a consumer group has: one at a time.

| kind                      | a message counts as consumed when   | where it is delivered again           |
|---------------------------|-------------------------------------|---------------------------------------|
| leases (gRPC)             | it is acknowledged                  | in its place                          |
| own offsets (remoting)    | the group's offset is after it      | as a copy in the group's retry topic  |

| a client of the other kind comes  | effect                                                            |
|-----------------------------------|-------------------------------------------------------------------|
| and one of the present kind lives | GROUP_CLIENTS_DIFFER                                              |
| and one may still come back       | the same, with the seconds                                        |
| to a group of leases              | convert(): groups/delivery/own_offsets.py                         |
| to a group of own offsets         | it has leases from its offsets on, and reads its retry topic      |

The kind is a record of the log: it survives a restart and a failover. Steps of convert(), of which each is in
the log before the next: copies, offsets, the end of the deliveries, the kind. The other way back the record
of the kind lies before the first delivery.

A next leader, and a broker that has started, knows no client yet. So the kind that it found counts until its
clients have had time to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from trovemq_broker.admin.group_changes import GroupChanges
from trovemq_broker.fetch.offsets import OffsetKeeper
from trovemq_broker.groups.delivery.delivery import Delivery
from trovemq_broker.maintenance.consumer_tasks import TimerTask
from trovemq_broker.produce.append import Appender
from trovemq_broker.produce.group_commit import GroupCommit
from trovemq_broker.server.core.clients import RECONNECT_MS, ClientRegistry
from trovemq_broker.timers.timers import Timers
from trovemq_daemon.logging import get_logger
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.fault_points import fault_point
from trovemq_store.topics.subscription_groups import OWN_OFFSETS_ATTRIBUTE, SubscriptionGroups

REMOTING_RETURN_MS: Final = 60_000
"""Two periods of heartbeats: a client learns of the next leader in one, and is heard there in the other."""


class Core(Protocol):
    """The parts of the broker that a conversion needs."""

    appender: Appender
    group_changes: GroupChanges
    group_commit: GroupCommit
    offsets: OffsetKeeper
    registry: ClientRegistry

    @property
    def clock_ms(self) -> Callable[[], EpochMs]: ...
    @property
    def delivery(self) -> Delivery: ...
    @property
    def groups(self) -> SubscriptionGroups: ...
    @property
    def store(self) -> MessageStore: ...
    @property
    def timer_task(self) -> TimerTask: ...
    @property
    def timers(self) -> Timers: ...
    @property
    def turns(self) -> Turns: ...


class GroupKinds:
    """For use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._converting: dict[str, asyncio.Task[None]] = {}
        self._opened_ms = core.clock_ms()
        self._had_own_offsets = frozenset(
            name for name in core.groups.names() if core.groups.require(name).has_own_offsets
        )
        self._had_leases = frozenset(core.delivery.group_topics.groups()) - self._had_own_offsets
        self.has_remoting_members: Callable[[str], bool] = lambda _group: False
        self.store_offsets: Callable[[str], None] = lambda _group: None
        """Stores offsets of the group that its remoting members have sent and that wait to be stored."""

    # --- own offsets --------------------------------------------------------------------------------
    def needs_conversion(self, name: str) -> bool:
        """Whether a consumer that keeps its position has to wait for convert()."""
        group = self._core.groups.get(name)
        if group is None or group.system:
            return False
        return not group.has_own_offsets or name in self._converting

    def check_own_offsets(self, name: str) -> None:
        """TroveError GROUP_CLIENTS_DIFFER while the group has members with leases."""
        core = self._core
        group = core.groups.get(name)
        if group is None or group.has_own_offsets:
            return
        if members := core.registry.members(name):
            text = f"{len(members)} gRPC clients consume as group {name}, {members[0].client_id} for one"
            raise TroveError(errors.GROUP_CLIENTS_DIFFER, f"{text}: stop them first", group=name)
        if name in self._had_leases:
            self._check_returned(name, "gRPC clients", RECONNECT_MS)

    async def convert(self, name: str) -> None:
        """The group's consumers keep their positions when this returns. TroveError GROUP_CLIENTS_DIFFER,
        GROUP_NOT_FOUND, DISK_FULL, STORE_FAILED, and those of a replica group: then it is as it was, or
        partly converted, which loses nothing."""
        running = self._converting.get(name)
        if running is None:
            if self._core.groups.require(name).has_own_offsets:
                return
            self._core.appender.check_accepting()
            self.check_own_offsets(name)
            running = asyncio.get_running_loop().create_task(self._convert(name), name="convert-group")
            self._converting[name] = running
            running.add_done_callback(partial(self._converted, name))
        await asyncio.shield(running)

    def _converted(self, name: str, conversion: asyncio.Task[None]) -> None:
        del self._converting[name]
        if not conversion.cancelled() and (error := conversion.exception()) is not None:
            get_logger().warning("group.not_converted", group=name, reason=str(error))

    async def settle(self) -> None:
        """No conversion runs when this returns; one that did has lost nothing."""
        running = list(self._converting.values())
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _convert(self, name: str) -> None:
        core = self._core
        if core.delivery.has_group(name) or core.group_changes.topics_of(name):
            for _ in range(2):  # the second one copies records that were not visible at the first
                group, topics = core.groups.require(name), core.group_changes.topics_of(name)
                now_ms = core.clock_ms()
                await core.turns.run(core.delivery.own_offsets_steps(core.timers, group, topics, now_ms))
                await core.group_commit.committed(core.store.end_offset)
            core.timer_task.changed()
            await core.offsets.save()
            fault_point("own_offsets.after_save")
            core.delivery.forget_group(name, core.clock_ms())
            fault_point("own_offsets.after_forgetting")
        await core.group_changes.mark(name, OWN_OFFSETS_ATTRIBUTE, "true")
        get_logger().info("group.converted", group=name, kind="own offsets")

    # --- leases -------------------------------------------------------------------------------------
    def check_leases(self, name: str) -> None:
        """A client with leases is to be served; the group is converted for it if need be. TroveError
        GROUP_CLIENTS_DIFFER, DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE."""
        core = self._core
        group = core.groups.get(name)
        if group is None or not (group.has_own_offsets or name in self._converting):
            return
        if name in self._converting or self.has_remoting_members(name):
            text = f"remoting clients of RocketMQ consume as group {name}: stop them first"
            raise TroveError(errors.GROUP_CLIENTS_DIFFER, text, group=name)
        if name in self._had_own_offsets:
            self._check_returned(name, "remoting clients of RocketMQ", REMOTING_RETURN_MS)
        self.store_offsets(name)
        core.groups.mark(name, OWN_OFFSETS_ATTRIBUTE, None, now_ms=core.clock_ms())
        get_logger().info("group.converted", group=name, kind="leases")

    # --- clients from before ------------------------------------------------------------------------
    def _check_returned(self, name: str, clients: str, period_ms: int) -> None:
        """TroveError GROUP_CLIENTS_DIFFER while those from before the start may still come back."""
        now_ms = self._core.clock_ms()
        self._opened_ms = min(self._opened_ms, now_ms)  # the clock was set back
        remaining_ms = period_ms - (now_ms - self._opened_ms)
        if remaining_ms > 0:
            text = f"{clients} consumed as group {name} before this broker started, or came to lead"
            text += f": unless they come back within {-(-remaining_ms // 1000)} s, others may join"
            raise TroveError(errors.GROUP_CLIENTS_DIFFER, text, group=name)
