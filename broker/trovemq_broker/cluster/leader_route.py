"""The leader of this node's replica group, as the only route of the calls that are forwarded to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from trovemq_broker.cluster.cluster_reply import RoutedBroker
from trovemq_broker.cluster.view import GroupLeader
from trovemq_daemon.addresses import parse_address
from trovemq_daemon.errors import SettingsError


class LeaderRoute:
    """`name`: of the group's broker. `leader`: None where none is known."""

    def __init__(self, name: str, leader: Callable[[], GroupLeader | None]) -> None:
        self._name = name
        self._leader = leader

    @property
    def brokers(self) -> Sequence[RoutedBroker]:
        """The leader, if one is known. Its address for TLS is not: a call that came by TLS stays here."""
        leader = self._leader()
        if leader is None or not leader.address:
            return ()
        with suppress(SettingsError):
            address = parse_address(leader.address)
            return (RoutedBroker(self._name, address, None, False, 0, {}, None, leader),)
        return ()
