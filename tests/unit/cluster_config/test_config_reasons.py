"""The texts of /readyz, and the metrics of the configuration."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.support.config_figures import FakeFigures, FakeMember, FakeStatus, copy_of
from trovemq_broker.cluster.config_metrics import STATES, TO_MEND, ConfigCollector
from trovemq_broker.cluster_config.config_reasons import reason, warning
from trovemq_broker.cluster_config.follower import Serving


@pytest.mark.parametrize("state", STATES)
def test_a_broker_is_ready_exactly_where_it_serves_messages(state: str) -> None:
    serves = state not in ("joining", "waiting", "removed")
    assert (reason(state, "a") == "") == serves
    if state in Serving.__members__.values():
        assert Serving(state).serves == serves


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("joining", ("waits for its owner a (refused)", "config_owner")),
        ("waiting", ("waits for its owner a (refused), 10 s at most",)),
        ("removed", ("empty store",)),
    ],
)
def test_a_reason_says_what_is_waited_for_and_what_to_do(state: str, words: tuple[str, ...]) -> None:
    text = reason(state, "a", problem="refused")
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("stored", ("the owner a is away (refused)", "start that", "trovemq cluster config-owner NAME")),
        ("superseded", ("in generation 3.0123", "changes are refused")),
        ("contradicted", ("an older copy (refused)", "--source BROKER")),
        ("current", ("refused",)),
    ],
)
def test_a_warning_says_what_is_wrong_and_what_to_do(state: str, words: tuple[str, ...]) -> None:
    text = warning(state, "a", generation="3.0123", problem="refused")
    assert all(word in text for word in words), text


def test_a_state_as_it_should_be_is_no_warning() -> None:
    for state in ("alone", "owner", "current"):
        assert warning(state, "a") == ""


# --- metrics ----------------------------------------------------------------------------------------------
def values(figures: FakeFigures) -> dict[tuple[str, str], float]:
    """By name and the value of its label."""
    registry = CollectorRegistry()
    registry.register(ConfigCollector(figures))
    return {
        (sample.name.removeprefix("trovemq_config_"), "".join(sample.labels.values())): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_the_figures_of_an_owner() -> None:
    members = (
        FakeMember("a", 7, True),
        FakeMember("b", 7, True),
        FakeMember("c", 4, False),
        FakeMember("d", 9, True),
    )
    status = FakeStatus("owner", copy_of("a", 2, 7), members, dropped=("x", "y"))
    found = values(FakeFigures(status, changes=5, changes_waiting=1))
    assert {name: found[name, ""] for name in ("generation", "version", "members", "members_live")} == {
        "generation": 2, "version": 7, "members": 3, "members_live": 2,
    }  # fmt: skip
    assert (found["changes_total", ""], found["changes_waiting", ""]) == (5, 1)
    assert [found["follower_lag", name] for name in "bcd"] == [0, 3, 0]
    assert [found["entries", name] for name in TO_MEND] == [0, 0, 0, 2, 0]


@pytest.mark.parametrize("state", STATES)
def test_one_state_is_the_present_one(state: str) -> None:
    found = values(FakeFigures(FakeStatus(state)))
    assert [name for name in STATES if found["state", name]] == [state]
    assert (found["version", ""], found["generation", ""]) == (0, 0)
