"""Which broker owns the cluster's configuration, and where it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoint, Endpoints
from trovemq_broker.cluster_config.entries import Generation, Kind
from trovemq_broker.cluster_config.stored import StoredTable
from trovemq_broker.cluster_config.table import Update
from trovemq_daemon.addresses import Address
from trovemq_daemon.logging import get_logger
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NAMED_MAX: Final = 8
FIRST_GENERATION: Final = 1
"""Of a table that no other broker has taken over."""


@dataclass(frozen=True, slots=True)
class OwnerNamed:
    """The setting config_owner. `address`: None where the routes have it."""

    name: str
    address: Address | None


class Successor(NamedTuple):
    """The owner of a later generation than the table's; empty: it is not known."""

    generation: Generation
    owner: str


class OwnerFinder:
    def __init__(
        self,
        stored: StoredTable,
        broker: str,
        named: OwnerNamed | None,
        endpoints: Endpoints,
        routes: ClusterRoutes,
    ) -> None:
        self._stored = stored
        self._broker = broker
        self._named = named
        self._endpoints = endpoints
        self._routes = routes
        if named is not None and named.address is not None:
            endpoints.reached(endpoints.at(named.name, named.address))
        self._reports_seen = -1
        self._logged = ""
        self.successor: Successor | None = None
        self.hint = ""
        """The owner that another broker has named, which was asked by mistake."""
        self._found = ""
        """Without a table, and with a setting whose broker is away: the owner that the routes show."""

    def target(self) -> Endpoint | str:
        """Where the owner is; a text if that is not known. Its address is that of the setting, else of the
        routes, else the last one. For a replica group the routes come first: they have its leader."""
        self._look_for_another()
        name, named = self.owner(), self._named
        if not name or name == self._broker:
            return self._unknown_owner()
        is_group = any(one.name == name and one.leader is not None for one in self._routes.brokers)
        if named is not None and named.name == name and named.address is not None and not is_group:
            return self._endpoints.at(name, named.address)
        found = self._endpoints.find(name)
        if found is None:
            self.hint = ""
            return f"the address of the owner {name} is not known: it is not in the nameservers' routes"
        return found

    def _look_for_another(self) -> None:
        """For a broker that joins, where the broker of the setting is in no routes: the broker that has
        taken over, if all brokers have its table. An address in the setting is tried every other time."""
        named, before = self._named, self._found
        self._found = ""
        if self._stored.table.exists or named is None or self.successor is not None or self.hint:
            return
        shown = [one.config for one in self._routes.brokers if one.config is not None]
        is_live = any(one.name == named.name for one in self._routes.brokers)
        if is_live or len({one.id for one in shown}) != 1 or (before and named.address is not None):
            return
        newest = max(shown, key=lambda one: (one.generation, one.mark))
        if newest.generation > FIRST_GENERATION and newest.owner not in (named.name, self._broker):
            self._found = newest.owner
            text = (
                f"config_owner is {named.name}, which is away: {newest.owner} has taken over, in generation "
                f"{newest.generation}, and is followed. Set config_owner={newest.owner}"
            )
            if text != self._logged:
                self._logged = text
                get_logger().warning("config.owner_lost", message=text)

    def check_joined(self, update: Update) -> None:
        """To be called before the first table is stored. TroveError CONFIG_OTHER_CLUSTER if it is of another
        owner than the setting names, and that one was never a member: it is another configuration."""
        named = self._named
        if self._stored.table.exists or not self._found or named is None:
            return
        if any(one.kind is Kind.BROKER and one.name == named.name for one in update.entries):
            return
        what = f"config_owner is {named.name}, which is no broker of the configuration of {self._found}"
        raise TroveError(errors.CONFIG_OTHER_CLUSTER, what, owner=self._found)

    def _unknown_owner(self) -> str:
        """Why no other broker is known as the owner. The next attempt asks that of the setting again."""
        if self.hint and self._named is not None:
            self.hint = ""
            what = f"broker {self._named.name} waits for an owner, too, and this broker's name came back"
            return f"{what}: one of them must be the owner, and have no config_owner"
        seen = self._stored.promised
        return f"no broker is known that owns generation {seen}: trovemq cluster config-owner NAME"

    def owner(self) -> str:
        """Its name; empty if it is not known."""
        successor = "" if self.successor is None else self.successor.owner
        if not self._stored.table.exists:
            return successor or self.hint or self._found or ("" if self._named is None else self._named.name)
        return successor if self._stored.is_superseded else self._stored.head.owner

    def later(self) -> Successor | None:
        """A later generation of this cluster that the nameservers show, and that was not noted yet."""
        routes, head = self._routes, self._stored.head
        if routes.reports == self._reports_seen or not head.cluster:
            return None
        shown = (
            Successor(Generation(one.config.generation, one.config.mark), one.config.owner)
            for one in routes.brokers
            if one.config is not None and one.config.id == head.cluster
        )
        found = max(shown, default=None)
        if found is not None and found.generation > head.generation and found != self.successor:
            return found  # until it was noted: a full disk may have prevented that
        self._reports_seen = routes.reports
        return None

    def note(self, successor: Successor | None) -> None:
        """Keeps a successor that is known by its name, unless a later one is seen. None forgets it."""
        known = self.successor
        if successor is None or successor.owner or known is None or known.generation < successor.generation:
            self.successor = successor

    def other_cluster(self) -> str:
        """A text if brokers in the routes have the configuration of another cluster: the store of one was
        started here by mistake. Empty if none has."""
        own = self._stored.head
        others = [
            (one.name, one.config)
            for one in self._routes.brokers
            if own.cluster and one.config is not None and one.config.id != own.cluster
        ]
        if not others:
            return ""
        names, shown = ", ".join(name for name, _ in others[:NAMED_MAX]), others[0][1]
        return (
            f"{errors.CONFIG_OTHER_CLUSTER.symbol}: this store has configuration {own.cluster}, which"
            f" {own.owner} owns, and {names} in the same routes have {shown.id}, of {shown.owner}: stop the"
            " brokers whose stores belong elsewhere, or give them their own nameserver; if all are of one"
            " cluster, name the configuration that stays: trovemq cluster config-owner NAME --cluster ID"
        )

    def contradiction(self) -> str:
        """A text if the setting names another owner than the table, as after a take-over; empty if not."""
        named, owner = self._named, self._stored.head.owner
        if named is None or not owner or named.name == owner:
            return ""
        return f"config_owner is {named.name}, the table says {owner}: the setting is for a new store"
