"""What a broker says of its configuration: to operators, and to a broker that takes over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from trovemq_broker.cluster_config.entries import Generation, Key
from trovemq_broker.cluster_config.table import Head
from trovemq_broker.cluster_config.take_over import CopyStatus


class NodeState(StrEnum):
    """`ALONE`: there is no table, each change is this broker's own. `OWNER`, `SUPERSEDED`, `CONTRADICTED`: of
    the owner that the table names. `REMOVED`: this broker is no member any more. The others are those of a
    follower (follower.Serving)."""

    ALONE = "alone"
    OWNER = "owner"
    SUPERSEDED = "superseded"
    CONTRADICTED = "contradicted"
    REMOVED = "removed"
    JOINING = "joining"
    WAITING = "waiting"
    STORED = "stored"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Note:
    """An entry that needs an operator, and why."""

    key: Key
    message: str = ""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """`version`: what the broker has stored, as the owner knows; 0 if it has not reported yet."""

    broker: str
    version: int
    live: bool


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The lists are those of ConfigStatus in cluster_config.proto."""

    state: NodeState
    problem: str
    copy: CopyStatus
    members: Sequence[MemberStatus] = ()
    unlisted: Sequence[Note] = ()
    differing: Sequence[Note] = ()
    withheld: Sequence[Note] = ()
    dropped: Sequence[Note] = ()
    failed: Sequence[Note] = ()


@dataclass(frozen=True, slots=True)
class PromiseAsked:
    """A take-over asks to obey no owner of an older generation. `owner` and `address`: who takes over, and
    where it is reached."""

    generation: Generation
    cluster: str
    owner: str
    address: str


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The end of a take-over. `source`: whose copy continues. `unreached`: brokers that did not take part;
    their changes that no other broker holds are lost."""

    head: Head
    source: str
    promised: Sequence[str]
    unreached: Sequence[str]
    dropped: Sequence[Note]
