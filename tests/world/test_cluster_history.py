"""The check of a cluster's history finds each planted fault, and finds nothing where nothing is wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.world.cluster_history import (
    BEGUN,
    FINDINGS,
    STORED,
    UNKNOWN,
    Consumed,
    Disturbed,
    Event,
    Expected,
    GroupDeleted,
    GroupMade,
    Holdings,
    Key,
    QueuePlace,
    Received,
    Removed,
    Report,
    Sent,
    TopicDeleted,
    TopicMade,
    check,
    read_key,
    unconsumed,
)
from tests.world.cluster_steps import (
    ACTIONS,
    BROKERS_MAX,
    KEPT,
    Step,
    StepError,
    all_up,
    begun,
    draw,
    read_step,
)

EXPECTED = Expected({"orders": "FIFO 1"}, {"billing": "orderly"})


def key(number: int, *, life: int = 1, stream: str = "a") -> Key:
    return Key("orders", life, stream, number)


def place(number: int, broker: str = "b1") -> QueuePlace:
    return QueuePlace(broker, 0, number)


def delivered(number: int, broker: str = "b1", *, life: int = 1) -> list[Event]:
    return [
        Received("billing", key(number, life=life), place(number, broker)),
        Consumed("billing", key(number, life=life), place(number, broker)),
    ]


def sent(*numbers: int, broker: str = "b1") -> list[Event]:
    return [Sent(key(number), STORED, broker) for number in numbers]


def holdings(*numbers: int, broker: str = "b1") -> Holdings:
    stored = tuple((key(number), place(number, broker)) for number in numbers)
    return Holdings(stored, EXPECTED.topics, EXPECTED.groups)


BEGIN: list[Event] = [TopicMade("orders", 1, True), GroupMade("billing", "orders")]
RIGHT: list[Event] = [*BEGIN, *sent(0, 1, 2), *delivered(0), *delivered(1), *delivered(2)]
AGAIN: list[Event] = [TopicDeleted("orders"), TopicMade("orders", 2, True), GroupMade("billing", "orders")]


def found(events: list[Event], *brokers: Holdings) -> Report:
    names = [f"b{number}" for number in range(1, len(brokers) + 1)]
    return check(events, dict(zip(names, brokers, strict=True)), names, dict.fromkeys(names, EXPECTED))


def kinds(report: Report) -> set[str]:
    return {finding.kind for finding in report.findings}


def test_a_right_history_has_no_finding() -> None:
    report = found(RIGHT, holdings(0, 1, 2))
    assert report.findings == []
    assert report.counts == {"messages": 3, "acknowledged": 3, "unknown": 0, "deliveries": 3}
    assert unconsumed(RIGHT) == 0


SHORT = [*BEGIN, *sent(0, 1, 2), *delivered(0), *delivered(1)]
WRONG: dict[str, tuple[list[Event], tuple[Holdings, ...], str]] = {
    "a lost message": (RIGHT, (holdings(0, 2),), "lost"),
    "one that no group got": (SHORT, (holdings(0, 1, 2),), "unconsumed"),
    "one of a removed broker that no group got": (
        [*BEGIN, *sent(0, broker="b2"), Removed("b2"), *delivered(0, "b2")],
        (holdings(),),
        "lost_by_removal",
    ),
    "two in the other order": (
        [*BEGIN, *sent(0, 1), *delivered(1), *delivered(0)],
        (holdings(0, 1),),
        "reordered",
    ),
    "two of two brokers in the other order": (
        [*BEGIN, *sent(0, broker="b2"), *sent(1), *delivered(1), *delivered(0, "b2")],
        (holdings(1), holdings(0, broker="b2")),
        "reordered_between",
    ),
    "a copy": (RIGHT, (holdings(0, 1, 2), holdings(1, broker="b2")), "copies"),
    "a second delivery without a reason": ([*RIGHT, *delivered(1)], (holdings(0, 1, 2),), "redelivered"),
    "a message of the deleted topic": ([*RIGHT, *AGAIN, *delivered(1)], (holdings(),), "undeleted"),
    "a stored message of the deleted topic": ([*RIGHT, *AGAIN], (holdings(1),), "undeleted"),
    "a message that was not sent": ([*RIGHT, *delivered(9)], (holdings(0, 1, 2),), "unknown_message"),
    "a stored message that was not sent": (RIGHT, (holdings(0, 1, 2, 9),), "unknown_message"),
    "a deleted topic": (
        RIGHT,
        (replace(holdings(0, 1, 2), topics={**EXPECTED.topics, "old": "MIXED 1"}),),
        "topic_back",
    ),
    "a deleted group": (
        RIGHT,
        (replace(holdings(0, 1, 2), groups={**EXPECTED.groups, "old": ""}),),
        "group_back",
    ),
    "no topic": (RIGHT, (holdings(0, 1, 2), Holdings(groups=EXPECTED.groups)), "lacking"),
    "other settings": (RIGHT, (replace(holdings(0, 1, 2), topics={"orders": "FIFO 2"}),), "differs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_found(name: str) -> None:
    events, brokers, kind = WRONG[name]
    assert kinds(found(events, *brokers)) == {kind}


def test_a_broker_that_nobody_lists_is_found() -> None:
    report = check(RIGHT, {"b1": holdings(0, 1, 2)}, ["b1", "b2"], {"b1": EXPECTED})
    assert kinds(report) == {"routes"}


def test_each_kind_of_finding_is_planted() -> None:
    assert {kind for _, _, kind in WRONG.values()} | {"routes"} == set(FINDINGS)


def test_what_at_least_once_allows_is_counted_and_no_finding() -> None:
    again = [*RIGHT, Disturbed("b1"), *delivered(1)]
    report = found(again, holdings(0, 1, 2))
    assert (report.findings, report.counts["duplicates"]) == ([], 1)
    assert found([*BEGIN, Sent(key(0), BEGUN), *delivered(0), *sent(0)], holdings(0)).findings == []
    first, second = delivered(0)
    late = [*BEGIN, *sent(0), first, Disturbed("b1"), second, *delivered(0)]
    assert found(late, holdings(0)).findings == []
    in_doubt = [*BEGIN, Sent(key(0), UNKNOWN), *sent(0), *delivered(0), *delivered(0, "b2")]
    report = found(in_doubt, holdings(0), holdings(0, broker="b2"))
    assert (report.findings, report.counts["unknown"]) == ([], 1)


def test_deletions_and_removals_excuse_messages() -> None:
    consumed = [*BEGIN, *sent(0, broker="b2"), *delivered(0, "b2"), Removed("b2")]
    assert found(consumed, holdings()).findings == []
    later = [*consumed, GroupMade("later", "orders")]
    assert found(later, holdings()).findings == [], "its messages were gone before the group came"
    assert found([*SHORT, GroupDeleted("billing")], holdings(0, 1, 2)).findings == []
    assert found([*SHORT, *AGAIN], holdings()).findings == []


def test_a_later_group_may_get_what_was_sent_before_in_another_order() -> None:
    before = [TopicMade("orders", 1, True), *sent(0, broker="b2"), *sent(1), GroupMade("billing", "orders")]
    stored = holdings(1), holdings(0, broker="b2")
    assert found([*before, *delivered(1), *delivered(0, "b2")], *stored).findings == []
    after = [*delivered(1), *sent(2, broker="b2"), *sent(3), *delivered(3), *delivered(2, "b2")]
    stored = holdings(1, 3), holdings(0, 2, broker="b2")
    report = found([*before, *delivered(0, "b2"), *after], *stored)
    assert [finding.kind for finding in report.findings] == ["reordered_between"]


def test_keys_are_read_as_they_are_written() -> None:
    assert read_key(str(key(7, life=3))) == key(7, life=3)


# --- the steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_owner", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_drawn_steps_fit_the_cluster_and_can_be_read_again(seed: int, has_owner: bool) -> None:
    steps = drawn(seed, has_owner=has_owner)
    assert len(steps) >= 200
    assert steps == drawn(seed, has_owner=has_owner)
    assert [read_step(str(step)) for step in steps] == steps
    cluster = begun(has_owner=has_owner)
    for step in steps:
        cluster.apply(step)
        assert cluster.named("serving")
        assert KEPT in cluster.brokers
        assert len(cluster.brokers) <= BROKERS_MAX
        assert all(topic.groups for topic in cluster.topics.values() if topic.name != step.name)
    assert set(cluster.brokers.values()) == {"serving"}


def drawn(seed: int, *, has_owner: bool) -> list[Step]:
    cluster = begun(has_owner=has_owner)
    return [*draw(random.Random(seed), cluster, 200), *all_up(cluster)]


def test_each_action_is_drawn() -> None:
    assert {step.action for seed in range(10) for step in drawn(seed, has_owner=True)} == set(ACTIONS)


@pytest.mark.parametrize(
    "line",
    [
        "remove broker-1",
        "start broker-1",
        "undrain broker-1",
        "add broker-2",
        "drain broker-9",
        "delete-group group-1",
        "alter-topic topic-2 - 9",
        "create-topic topic-1 MIXED 1",
        "take-over broker-2",
    ],
)
def test_a_step_that_does_not_fit_is_refused(line: str) -> None:
    cluster = begun(has_owner=False)
    with pytest.raises(StepError):
        cluster.apply(read_step(line))
    assert cluster == begun(has_owner=False)


def test_the_last_broker_that_serves_is_not_taken_away() -> None:
    cluster = begun(has_owner=False)
    cluster.apply(Step("drain", "broker-2"))
    with pytest.raises(StepError, match="last one"):
        cluster.apply(Step("kill", "broker-1"))


@pytest.mark.parametrize("line", ["", "explode broker-1", "kill a b c d", "alter-topic topic-1 - x"])
def test_a_line_that_is_no_step_is_refused(line: str) -> None:
    with pytest.raises(StepError):
        read_step(line)
