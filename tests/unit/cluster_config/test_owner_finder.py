"""Where the owner of the configuration is reached (cluster/owner_finder.py)."""

from __future__ import annotations

import pytest

from tests.unit.cluster_config.config_parts import founded
from trovemq_broker.cluster.cluster_reply import RoutedBroker, Routes
from trovemq_broker.cluster.cluster_routes import ClusterRoutes
from trovemq_broker.cluster.config_calls import Endpoint, Endpoints
from trovemq_broker.cluster.owner_finder import OwnerFinder, OwnerNamed
from trovemq_broker.cluster.registration import registration_channels
from trovemq_broker.cluster.view import GroupLeader
from trovemq_daemon.addresses import parse_address

NAMED = parse_address("127.0.0.1:1")
ROUTED = parse_address("127.0.0.1:2")


@pytest.mark.parametrize(
    ("leader", "expected"), [(None, NAMED), (GroupLeader("0123456789abcdef", "n2", 2), ROUTED)]
)
def test_a_groups_leader_is_where_the_routes_have_it(leader: GroupLeader | None, expected: object) -> None:
    """A broker whose setting has the address of the former leader."""
    routes = ClusterRoutes(lambda: 0.0)
    routed = RoutedBroker("a", ROUTED, None, False, 1, {}, leader=leader)
    routes.report("ns", Routes({"a": routed}))
    endpoints = Endpoints(routes, registration_channels())
    table = founded()._stored
    finder = OwnerFinder(table, "b", OwnerNamed("a", NAMED), endpoints, routes)
    target = finder.target()
    assert isinstance(target, Endpoint)
    assert (target.broker, target.address) == ("a", expected)
