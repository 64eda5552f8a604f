"""The cluster's configuration as its brokers have it. Frozen values; none of them holds a connection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

OLDER: Final = "unknown"
"""The state of a broker that is older than this call."""


class ConfigGeneration(NamedTuple):
    """Rises with each take-over. The mark is drawn by chance: two brokers that take over on both sides of a
    partition never share a generation."""

    number: int
    mark: str

    def __str__(self) -> str:
        return f"{self.number}.{self.mark[:4]}"


NO_GENERATION: Final = ConfigGeneration(0, "")


@dataclass(frozen=True, slots=True)
class ConfigName:
    """A topic, group, user, rule or quota, with a remark."""

    kind: str
    name: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ConfigMember:
    """A broker of the cluster as the owner sees it.

    Attributes:
        broker: Its name.
        version: The version that it has stored; 0 if it has not reported yet.
        live: Whether it is connected, and changes wait for it.
    """

    broker: str
    version: int
    live: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigStatus:
    """The configuration that one broker has.

    Attributes:
        broker: The broker.
        state: `alone`: it has no table, and each change is its own. `owner`: it changes the table. `current`,
            `stored`: it follows; the owner is connected, or away. `waiting`, `joining`: it waits for the
            owner, and serves no messages. `superseded`: another broker has taken over. `contradicted`: its
            store was put back from an older copy. `removed`: it was removed from the cluster. `unknown`: it
            is older than this call.
        problem: Why it cannot follow or change the table; empty if it can.
        cluster: The id of the cluster's configuration; empty without a table.
        owner: The broker that owns the table that it has.
        generation: The generation of that table.
        version: The version of that table.
        digest: Of all changes up to the version: tables of one version with different digests contradict.
        promised: The highest generation that it has seen; it obeys no older one.
        members: Of an owner: the brokers of the cluster, itself too.
        unlisted: Entries that it has, and the table has not.
        differing: Entries that it has with other settings than the table.
        withheld: Entries that were deleted while it was away: kept on its disk, not served.
        dropped: Its changes that a take-over has dropped.
        failed: Entries that it could not make yet.
    """

    broker: str
    state: str
    problem: str = ""
    cluster: str = ""
    owner: str = ""
    generation: ConfigGeneration = NO_GENERATION
    version: int = 0
    digest: str = ""
    promised: ConfigGeneration = NO_GENERATION
    members: tuple[ConfigMember, ...] = ()
    unlisted: tuple[ConfigName, ...] = ()
    differing: tuple[ConfigName, ...] = ()
    withheld: tuple[ConfigName, ...] = ()
    dropped: tuple[ConfigName, ...] = ()
    failed: tuple[ConfigName, ...] = ()

    @property
    def has_table(self) -> bool:
        """Whether it has the table of a cluster."""
        return bool(self.cluster)

    @property
    def is_owner(self) -> bool:
        """Whether it changes the table."""
        return self.state == "owner"

    def lists(self) -> Iterator[tuple[str, tuple[ConfigName, ...]]]:
        """The lists that need an operator, each with its name."""
        yield "unlisted", self.unlisted
        yield "differing", self.differing
        yield "withheld", self.withheld
        yield "dropped", self.dropped
        yield "failed", self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTakeOver:
    """The result of a take-over.

    Attributes:
        cluster: The id of the cluster's configuration.
        owner: The new owner.
        generation: The new generation.
        version: The version of the copy that continues.
        source: The broker whose copy that was.
        promised: The brokers that took part: they obey no older owner.
        unreached: The brokers that did not: changes that only they hold are lost.
        dropped: Changes of the new owner's own table that the copy lacks.
    """

    cluster: str
    owner: str
    generation: ConfigGeneration
    version: int
    source: str
    promised: tuple[str, ...] = ()
    unreached: tuple[str, ...] = ()
    dropped: tuple[ConfigName, ...] = ()
