"""The broker itself, for RocketMQ's tools and its exporter: runtime information, settings, upkeep.

The exporter reads most keys of the runtime information without a check: none of them may be missing, so some
that have no meaning here are constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from trovemq_broker.server.core.broker_core import BrokerCore
from trovemq_broker.server.remoting.native_calls import NativeCalls
from trovemq_broker.server.remoting.rates import Rates, Totals
from trovemq_broker.server.remoting.topic_admin import data_version
from trovemq_broker.server.wire.tool_calls import list_settings, set_setting, settings_texts
from trovemq_daemon.remoting.connection import VERSION
from trovemq_daemon.remoting.request import Request
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.layout import DELAY_LEVELS_SECONDS
from trovemq_proto.remoting.codes import ResponseCode
from trovemq_proto.remoting.json_text import json_text

SETTINGS_MAX: Final = 64
"""Of one change."""
_RELEASE: Final = "V5_4_0"
_TIMES: Final = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]"),
    *("[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
"""RocketMQ's classes of the time that a put takes."""
_THREAD_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
_ALWAYS_0: Final = (
    *("dispatchMaxBuffer", "getMessageEntireTimeMax", "pageCacheLockTimeMills"),
    *("putMessageEntireTimeMax", "putMessageFailedTimes", "putLatency99", "putLatency999"),
    *("remainTransientStoreBufferNumbs", "startAcceptSendRequestTimeStamp"),
    *("timerOffsetBehind", "EndTransactionQueueSize"),
    *(f"{name}ThreadPoolQueueSize" for name in _THREAD_POOLS),
    *(f"{name}ThreadPoolQueueHeadWaitTimeMills" for name in _THREAD_POOLS),
)
_QUEUE_SIZE: Final = "10000"
"""The capacity of queues that are not here: a tool shows the size beside it."""


class DiskSpace(NamedTuple):
    """Of the store's disk, in bytes. `free`: for this user; the file system may keep more for root."""

    total: int
    free: int
    used: int = 0


class Surroundings(NamedTuple):
    """Facts that the daemon knows. `started_ms`: of the broker, epoch ms."""

    started_ms: int
    disk: Callable[[], DiskSpace]
    nameservers: str


class BrokerAdmin:
    """For use on the event loop only."""

    def __init__(self, core: BrokerCore, calls: NativeCalls, around: Surroundings) -> None:
        self._core = core
        self._calls = calls
        self._around = around
        self.rates: Final = Rates(core.clock_ms, self._totals)
        self._timer_rates: Final = Rates(core.clock_ms, self._timer_totals)

    def sample(self) -> None:
        """To be called every SAMPLE_S."""
        self.rates.sample()
        self._timer_rates.sample()

    def _timer_totals(self) -> Totals:
        timers = self._core.timers
        return Totals(timers.enqueued.total(), timers.dequeued.total())

    def _totals(self) -> Totals:
        traffic = self._core.traffic
        return Totals(traffic.messages_in, traffic.messages_out.total())

    # --- runtime information ----------------------------------------------------------------------------
    def runtime(self, request: Request) -> None:
        """GET_BROKER_RUNTIME_INFO."""
        request.answer(body=json_text({"table": self.table()}))

    def table(self) -> dict[str, str]:
        core, around = self._core, self._around
        store, now, today = core.store, self.rates.now, self.rates.this_morning
        into = " ".join(f"{rate:.2f}" for rate, _ in self.rates.of_windows())
        out = " ".join(f"{rate:.2f}" for _, rate in self.rates.of_windows())
        disk = around.disk()
        usable = disk.used + disk.free
        used = f"{disk.used / usable:.2f}" if usable else "0.0"
        messages, size = core.traffic.messages_in, core.traffic.bytes_in
        unsynced = core.group_commit.unsynced_bytes
        return {
            **dict.fromkeys(_ALWAYS_0, "0"),
            **{f"{name}ThreadPoolQueueCapacity": _QUEUE_SIZE for name in _THREAD_POOLS},
            "EndTransactionThreadPoolQueueCapacity": _QUEUE_SIZE,
            "bootTimestamp": str(around.started_ms),
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": _RELEASE,
            "commitLogDirCapacity": f"Total : {_gib(disk.total)}, Free : {_gib(disk.free)}.",
            "commitLogDiskRatio": used,
            "commitLogMaxOffset": str(store.end_offset),
            "commitLogMinOffset": str(store.min_offset),
            "consumeQueueDiskRatio": used,
            "dispatchBehindBytes": str(store.undispatched_bytes),
            "earliestMessageTimeStamp": str(store.store_timestamp_at(store.min_offset) or core.clock_ms()),
            "getFoundTps": out,
            "getMissTps": "0.00 0.00 0.00",
            "getTotalTps": out,
            "getTransferedTps": out,
            "getTransferredTps": out,
            "msgGetTotalTodayMorning": str(today.messages_out),
            "msgGetTotalTodayNow": str(now.messages_out),
            "msgGetTotalYesterdayMorning": str(self.rates.yesterday_morning.messages_out),
            "msgPutTotalTodayMorning": str(today.messages_in),
            "msgPutTotalTodayNow": str(now.messages_in),
            "msgPutTotalYesterdayMorning": str(self.rates.yesterday_morning.messages_in),
            "putMessageAverageSize": f"{size / messages:.1f}" if messages else "0.0",
            "putMessageDistributeTime": " ".join(f"{name}:0" for name in _TIMES),
            "putMessageSizeTotal": str(size),
            "putMessageTimesTotal": str(messages),
            "putTps": into,
            "remainHowManyDataToCommit": "0 B",
            "remainHowManyDataToFlush": f"{unsynced} B",
            "runtime": _runtime(core.clock_ms() - around.started_ms),
            **self._of_timers(),
        }

    def _of_timers(self) -> dict[str, str]:
        """Of delayed messages. `timerReadBehind`: in seconds."""
        timers = self._core.timers
        (into, out), *_ = self._timer_rates.of_windows()
        due_ms, now_ms = timers.next_due_ms(), self._core.clock_ms()
        levels = {level: (0, 0) for level, _ in enumerate(DELAY_LEVELS_SECONDS, 1)} | timers.levels()
        return {
            "timerCongestNum": str(timers.pending_count),
            "timerDequeueTps": f"{out:.2f}",
            "timerEnqueueTps": f"{into:.2f}",
            "timerReadBehind": str(0 if due_ms is None else max(now_ms - due_ms, 0) // 1_000),
            **{f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in levels.items()},
        }

    def copies(self, request: Request) -> None:
        """GET_BROKER_HA_STATUS: copies of a replica group are not slaves of RocketMQ."""
        body = {
            "haClientRuntimeInfo": {},
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._core.store.end_offset,
        }
        request.answer(body=json_text(body))

    # --- settings ---------------------------------------------------------------------------------------
    def settings(self, request: Request) -> None:
        """GET_BROKER_CONFIG: RocketMQ's names where tools read them, and all settings by our names."""
        request.run(self._settings(request))

    async def _settings(self, request: Request) -> None:
        ours = settings_texts(await self._calls.make(request, list_settings()))
        both = {**ours, **self._rocketmq_settings(ours)}
        text = "".join(f"{name}={_line(value)}\n" for name, value in sorted(both.items()))
        request.answer(fields={"version": json_text(data_version(0)).decode()}, body=text.encode())

    def _rocketmq_settings(self, ours: Mapping[str, str]) -> dict[str, str]:
        core = self._core
        retention_ms = int(ours.get("reserved_time_ms", "0"))
        return {
            "autoCreateSubscriptionGroup": str(core.settings.auto_create_group).lower(),
            "autoCreateTopicEnable": str(bool(core.appender.queues_of_made_topic)).lower(),
            "brokerClusterName": core.store.settings.cluster,
            "brokerIP1": core.advertised.host,
            "brokerId": "0",
            "brokerName": core.broker,
            "brokerRole": "ASYNC_MASTER" if core.group_commit.copies is None else "SYNC_MASTER",
            "deleteWhen": ours.get("delete_when", "04"),
            "fileReservedTime": str(retention_ms // 3_600_000),
            "flushDiskType": f"{ours.get('flush_mode', 'sync').upper()}_FLUSH",
            "listenPort": str(core.advertised.port),
            "namesrvAddr": self._around.nameservers,
        }

    def update_settings(self, request: Request) -> None:
        """UPDATE_BROKER_CONFIG: those settings that change while the broker runs, by our names or
        RocketMQ's. An unknown one, or one that needs a restart, is refused by name."""
        try:
            text = request.body.decode()
        except UnicodeDecodeError:
            raise TroveError(errors.REQUEST_ILLEGAL, "the settings are not UTF-8") from None
        wanted = list(_properties(text))
        if len(wanted) > SETTINGS_MAX:
            text = f"a request has {SETTINGS_MAX} settings at most"
            raise TroveError(errors.LIMIT_EXCEEDED, text)
        request.run(self._update_settings(request, wanted))

    async def _update_settings(self, request: Request, wanted: list[tuple[str, str]]) -> None:
        for name, value in wanted:
            try:
                await self._calls.make(request, set_setting(name, value))
            except TroveError as error:
                if error.spec is not errors.REQUEST_ILLEGAL:
                    raise
                request.answer(ResponseCode.NO_PERMISSION, error.message)
                return
        request.answer()

    def nothing_to_do(self, request: Request) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE, DELETE_EXPIRED_COMMITLOG, CLEAN_UNUSED_TOPIC: retention does it."""
        request.answer()


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _runtime(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(elapsed_ms, 0) // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _line(value: str) -> str:
    return value.replace("\n", " ")


def _properties(text: str) -> list[tuple[str, str]]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return [(name.strip(), value.strip()) for name, _, value in pairs]
