"""Results of the calls about brokers as processes. They are frozen values, and none holds a connection."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainStatus:
    """How far the drain of a broker is.

    Attributes:
        broker: The broker.
        state: `serving`; `draining`: out of the routes for writing, but new messages are still stored;
            `drained`: new messages are refused; `stopping`.
        stops: Whether it stops when it is drained.
        open_transactions: How many atomic transactions are open there.
    """

    broker: str
    state: str
    stops: bool
    open_transactions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCondition:
    """The condition of a broker as a process.

    Attributes:
        broker: The broker.
        version: Its version.
        now: The time of its clock, epoch ms.
        drain: `serving`, `draining`, `drained` or `stopping`.
        reasons: Why it is not ready, as in /readyz.
        warnings: Conditions that deserve attention but hinder no request.
        disk_used_percent: How much of the store's disk is used.
        disk_full: Whether new messages are refused because the disk is full.
        open_files: Number of its open files and connections; 0 if its machine does not say.
        open_files_max: Their limit.
        store_mode: Permission bits of the store's directory; 0 if they are not known.
        authentication: Whether callers must prove who they are.
        plain_exposed: The address without TLS that other machines can reach; empty if there is none.
        http_exposed: The address of the operations HTTP that other machines can reach; empty if there is
            none.
        interpreter: Its Python, with `built without optimisation` if it was; empty from an older broker.
    """

    broker: str
    version: str
    now: int
    drain: str
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    disk_used_percent: float
    disk_full: bool
    open_files: int
    open_files_max: int
    store_mode: int
    authentication: bool
    plain_exposed: str
    http_exposed: str
    interpreter: str = ""


@dataclass(frozen=True, slots=True)
class Remainder:
    """Something that would be lost with a broker that is removed.

    Attributes:
        kind: `unconsumed`: messages of a topic that a group has not consumed; `unread`: messages of a topic
            that no group reads; `dead_letters` of a group that were not sent again; `delayed`: messages that
            wait for their delivery time; `half_messages`: those whose transaction is not ended;
            `transactions`: open atomic ones, whose messages would still be stored; `topic`: no other broker
            has it; `unknown`: the broker is away.
        count: How many messages; for `transactions` how many of them, for `topic` and `unknown` topics.
        topic: The topic, if it is of one.
        group: The group, if it is of one.
    """

    kind: str
    count: int
    topic: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class SettingDescription:
    """A setting of a broker, with its present value.

    Attributes:
        name: Its name.
        value: As TOML: `"sync"`, `5000`, `true`. The value of a secret that is set is empty.
        source: Where the value came from.
        needs_restart: Whether a change needs a restart.
        started_with: The value that it has after a restart, as TOML.
        form: Its possible values.
        what: Its effect.
        broker: The broker.
    """

    name: str
    value: str
    source: str
    needs_restart: bool
    started_with: str
    form: str
    what: str
    broker: str
