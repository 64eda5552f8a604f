"""The parts of an open store that its reads need: of a broker, and of a follower, which has no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from trovemq_broker.fetch.long_poll import LongPolls
from trovemq_broker.fetch.pull import Puller, PullSettings
from trovemq_broker.fetch.replica_puller import ReplicaPuller
from trovemq_broker.replication.read_lag import ReaderLag
from trovemq_broker.server.core.settings import ReadSettings
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.reply_budget import ReplyBudget
from trovemq_daemon.turns import Turns
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.engine.message_store import MessageStore


class ReadCore(Protocol):
    """BrokerCore is one."""

    @property
    def store(self) -> MessageStore: ...
    @property
    def settings(self) -> ReadSettings: ...
    @property
    def broker(self) -> str: ...
    @property
    def clock_ms(self) -> Callable[[], EpochMs]: ...
    @property
    def traffic(self) -> Traffic: ...
    @property
    def replies(self) -> ReplyBudget | None: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def puller(self) -> Puller: ...
    @property
    def long_polls(self) -> LongPolls: ...


class FollowerCore:
    """For use on the event loop only, until `close`. `lag`: of its readers, now."""

    def __init__(
        self,
        store: MessageStore,
        settings: ReadSettings,
        *,
        clock_ms: Callable[[], EpochMs],
        traffic: Traffic,
        replies: ReplyBudget | None,
        lag: Callable[[], ReaderLag],
    ) -> None:
        self.store: Final = store
        self.settings: Final = settings
        self.broker: Final = store.settings.broker
        self.clock_ms: Final = clock_ms
        self.traffic: Final = traffic
        self.replies: Final = replies
        self.lag: Final = lag
        self.turns: Final = Turns()
        self.puller: Final = ReplicaPuller(store, PullSettings(bytes_max=settings.pull_bytes_max), lag)
        self.long_polls: Final = LongPolls(settings.long_polls_max)

    def close(self) -> None:
        """Ends all waits; no later pull reads the store."""
        self.puller.refusal = closed()
        self.long_polls.close()


def closed() -> TroveError:
    """Of a call of a store that is being closed."""
    return TroveError(errors.SERVICE_NOT_AVAILABLE, "this replica opens its store again: try again")
