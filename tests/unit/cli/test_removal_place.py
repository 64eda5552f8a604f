"""`broker remove`: whether a broker owns the configuration that others share, as their routes say."""

from __future__ import annotations

import pytest

from trovemq.cli.broker_removal import _check_place
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, ConfigSummary
from trovemq_proto.errors import TroveError

ID = "0123456789abcdef"


def state(**owners: tuple[str, int]) -> ClusterState:
    """Brokers that share a configuration, with the owner and the generation that each one names."""
    brokers = (
        BrokerInfo("k", name, "127.0.0.1:1", config=ConfigSummary(ID, owner, generation))
        for name, (owner, generation) in owners.items()
    )
    return ClusterState(tuple(BrokerRoute(info, ()) for info in brokers), 1, ())


def test_the_owner_is_not_removed() -> None:
    with pytest.raises(TroveError, match="CONFIG_OWNER_STAYS"):
        _check_place(state(a=("a", 2), b=("a", 2)), "a", accept_loss=False)


def test_a_former_owner_that_had_just_returned_could_not_be_removed() -> None:
    _check_place(state(a=("a", 1), b=("b", 2)), "a", accept_loss=False)


def test_a_new_owner_that_still_names_the_former_one_is_not_removed() -> None:
    with pytest.raises(TroveError, match="CONFIG_OWNER_STAYS"):
        _check_place(state(a=("b", 1), b=("a", 2)), "a", accept_loss=False)


def test_the_next_owner_that_was_named_is_of_another_cluster_or_leaves_too() -> None:
    """The command that the error names was refused, or the configuration moved twice."""
    shared = {name: ConfigSummary(ID, "b", 1) for name in ("b", "c", "d")}
    configs = {"a": ConfigSummary("another", "a", 1), **shared}
    brokers = tuple(
        BrokerRoute(BrokerInfo("k", name, "127.0.0.1:1", config=config, draining=name == "c"), ())
        for name, config in configs.items()
    )
    with pytest.raises(TroveError, match=r"config-owner d$"):
        _check_place(ClusterState(brokers, 1, ()), "b", accept_loss=False)
