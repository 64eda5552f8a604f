"""The leader of this node's replica group, as the only route of the calls that are forwarded to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from trovemq_broker.cluster.cluster_reply import RoutedBroker
from trovemq_broker.cluster.view import GroupLeader
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError


class LeaderRoute:
    """`name`: of the group's broker. `leader`: None where none is known. `tls_address`: the leader's, empty
    where it has none, or none is known."""

    def __init__(
        self,
        name: str,
        leader: Callable[[], GroupLeader | None],
        tls_address: Callable[[], str] = str,
    ) -> None:
        self._name = name
        self._leader = leader
        self._tls_address = tls_address

    @property
    def brokers(self) -> Sequence[RoutedBroker]:
        """The leader, if one is known."""
        leader = self._leader()
        if leader is None or not leader.address:
            return ()
        with suppress(SettingsError):
            address, by_tls = parse_address(leader.address), self._tls_address()
            tls_address = parse_address(by_tls) if by_tls else None
            return (RoutedBroker(self._name, address, tls_address, False, 0, {}, None, leader),)
        return ()
