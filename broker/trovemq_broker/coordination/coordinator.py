"""The interface to the store of the group's agreement: keys and bytes, changed by compare-and-swap only.

Each call raises TroveError:

- COORDINATION_UNAVAILABLE: no answer, so the outcome of a change is unknown
- COORDINATION_ILLEGAL: an answer that cannot be right, as of a store that was restored from an older copy
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

Revision: TypeAlias = int
"""Of the whole store; each change has a higher one."""
LeaseId: TypeAlias = int


class KeyValue(NamedTuple):
    """`key`: without the group's prefix. `created`, `changed`: the revisions of its creation and of its last
    change. `lease`: 0 for none; the key goes with it."""

    key: str
    value: bytes
    created: Revision
    changed: Revision
    lease: LeaseId = 0


class Snapshot(NamedTuple):
    """All keys of the group at one revision, not older than the call that returned it."""

    revision: Revision
    values: Mapping[str, KeyValue]


class Compare(NamedTuple):
    """The key was last changed at that revision; 0: there is none."""

    key: str
    changed: Revision


class Put(NamedTuple):
    key: str
    value: bytes
    lease: LeaseId = 0


class Delete(NamedTuple):
    key: str


Change: TypeAlias = Put | Delete


class Swapped(NamedTuple):
    """`done`: all comparisons held, and all changes were made. `snapshot`: after them, or instead of them."""

    done: bool
    snapshot: Snapshot


class Lease(NamedTuple):
    """`ttl_s`: that the store has granted, which may be more than was asked for."""

    id: LeaseId
    ttl_s: int


class Coordinator(Protocol):
    """Of one group."""

    async def read(self) -> Snapshot: ...

    async def swap(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Swapped:
        """All changes or none; none, too, where a lease is gone. It is sent once only."""
        ...

    async def grant(self, ttl_s: int) -> Lease: ...

    async def keep_alive(self, lease: LeaseId) -> int:
        """Its time to live in seconds from now on; 0: the lease is gone."""
        ...

    async def revoke(self, lease: LeaseId) -> None:
        """Its keys are gone, too."""
        ...

    def watch(self, after: Revision) -> AsyncGenerator[Revision, None]:
        """A revision for each change that is heard of. A hint only: read() has the present state. Ends by an
        error when the connection is lost, or when the store has forgotten `after`."""
        ...
