"""The setting config_owner: a name, with an address or without one."""

from __future__ import annotations

import pytest

from trovemq_broker.cluster.owner_finder import OwnerNamed
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_daemon.addresses import Address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("broker-a", OwnerNamed("broker-a", None)),
        ("broker-a@10.0.0.1:8081", OwnerNamed("broker-a", Address("10.0.0.1", 8_081))),
        ("a@b@[::1]:8081", OwnerNamed("a@b", Address("::1", 8_081))),
    ],
)
def test_the_owner_is_a_name_and_perhaps_an_address(text: str, expected: OwnerNamed | None) -> None:
    settings = BrokerSettings(config_owner=text)
    assert settings.owner_named == expected
    assert list(settings.problems()) == []


@pytest.mark.parametrize("text", ["a@nowhere", "a@0.0.0.0:8081", "a@host:0", "@host:1", "n" * 128, "a\tb"])
def test_an_owner_that_cannot_be_one_is_a_problem_of_the_settings(text: str) -> None:
    (problem,) = BrokerSettings(config_owner=text).problems()
    assert "config_owner" in problem
