"""The answers of a cluster that `trovemq doctor` judges, and its findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trovemq.models.broker import BrokerCondition, SettingDescription
from trovemq.models.cluster import BrokerInfo, LostBroker, TopicDescription
from trovemq.models.config import ConfigStatus
from trovemq.models.group import GroupDescription
from trovemq_proto.errors import TroveError


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that looks wrong: where, what, and what to do. `check` is the name of the check."""

    check: str
    where: str
    what: str
    to_do: str
    note: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """How much a broker has: messages a second (None: not measured), the log's bytes, queues."""

    rate: float | None = None
    log_bytes: int = 0
    queue_count: int = 0


@dataclass(frozen=True, slots=True)
class Holdings:
    """The contents of a broker: topics of users and created groups by name, its load and its counters."""

    topics: Mapping[str, TopicDescription] = field(default_factory=dict)
    groups: Mapping[str, GroupDescription] = field(default_factory=dict)
    load: Load = Load()
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrokerEvidence:
    """A broker's answers. `asked`, `answered`: this machine's time before and after the call, epoch ms.
    `holdings`: its topics and groups, if it said so."""

    info: BrokerInfo
    condition: BrokerCondition | None = None
    settings: Mapping[str, SettingDescription] = field(default_factory=dict)
    asked: float = 0.0
    answered: float = 0.0
    failure: TroveError | None = None
    holdings: Holdings | None = None


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """A group on all brokers: its lag at two times, and the age of the oldest waiting message."""

    group: str
    members: int
    lag_before: int
    lag: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was collected. `failure`: the error of the first connection. `configs_before`,
    `configs`: the cluster's configuration at two times, at the first one only if it was looked at twice."""

    server: str
    version: str
    brokers: Sequence[BrokerEvidence] = ()
    groups: Sequence[GroupEvidence] = ()
    lost: Sequence[LostBroker] = ()
    failure: TroveError | None = None
    configs_before: Sequence[ConfigStatus] = ()
    configs: Sequence[ConfigStatus] = ()
