"""The cluster's configuration, as the services that change topics, groups and users need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from trovemq_broker.cluster_config.entries import ConfigChange
from trovemq_broker.cluster_config.owner import ChangeResult
from trovemq_broker.cluster_config.table import ConfigTable


class SharedConfig(Protocol):
    @property
    def is_shared(self) -> bool:
        """Whether the cluster's table rules here. Otherwise each change is this broker's own."""
        ...

    @property
    def is_owner(self) -> bool:
        """Whether this broker changes the table. Otherwise calls that change it are forwarded."""
        ...

    @property
    def table(self) -> ConfigTable: ...

    async def change(self, make: Callable[[ConfigTable], Sequence[ConfigChange]]) -> list[ChangeResult]:
        """On the owner: makes the changes that `make` returns for the present table, one at a time and
        without another one in between. They are acknowledged, and made in this broker's own tables, when
        this returns. A caller that is cancelled stops no change.

        Raises the errors of `make`, of the first change that is refused (then none was made), and TroveError
        CONFIG_OWNER_MOVED, CONFIG_OWNER_OLD, DISK_FULL, STORE_FAILED, SERVICE_NOT_AVAILABLE.
        """
        ...

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        """On a follower: the owner's reply to a client's call that changes the table, `method` as in
        `/trovemq.v1.AdminService/CreateTopic`. The entry it has changed has arrived here, too, when this
        returns, unless that takes longer than a second.

        Raises TroveError CONFIG_OWNER_UNREACHABLE, REQUEST_TIMEOUT, LIMIT_EXCEEDED, and every error with
        which the owner refuses the call.
        """
        ...


class _NotShared:
    """Of a broker whose configuration is its own. Nothing but `is_shared` is asked."""

    is_shared = False
    is_owner = False
    table: Final = ConfigTable()

    async def change(self, make: Callable[[ConfigTable], Sequence[ConfigChange]]) -> list[ChangeResult]:
        raise AssertionError("it is not shared")

    async def forward(self, method: str, request: bytes, *, caller: str, source: str) -> bytes:
        raise AssertionError("it is not shared")


NOT_SHARED: Final[SharedConfig] = _NotShared()
