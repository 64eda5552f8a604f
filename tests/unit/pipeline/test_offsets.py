"""Offsets of queues as JSON: RocketMQ's form, there and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_spark.sources.offsets import (
    ALL_EARLIEST,
    ALL_LATEST,
    EARLIEST_MARK,
    LATEST_MARK,
    Identities,
    Positions,
    Queue,
    offsets_from_json,
    offsets_to_json,
    parse_assignment,
    parse_ending_offsets,
    parse_starting_offsets,
)

queues = st.builds(Queue, st.text(max_size=5), st.text(max_size=3), st.integers(0, (1 << 31) - 1))


@given(st.dictionaries(queues, st.integers(-2, (1 << 63) - 1), max_size=8))
def test_there_and_back(offsets: dict[Queue, int]) -> None:
    document = json.loads(json.dumps(offsets_to_json(offsets)))
    assert offsets_from_json(document) == offsets
    if offsets:
        parsed = parse_starting_offsets(json.dumps(document))
        assert parsed.queues == offsets
        assert (parsed.is_named, parsed.default) == (True, EARLIEST_MARK)
        assert parse_ending_offsets(json.dumps(document)).default == LATEST_MARK


@given(
    st.dictionaries(queues, st.integers(-2, (1 << 63) - 1), max_size=8),
    st.dictionaries(st.tuples(st.text(max_size=5), st.text(max_size=3)), st.integers(0, (1 << 63) - 1)),
    st.booleans(),
)
def test_positions_say_of_which_topics_they_are(
    offsets: dict[Queue, int], others: Identities, known: bool
) -> None:
    own = {(queue.topic, queue.broker): queue.queue_id for queue in offsets} if known else {}
    positions = Positions(offsets, others | own)
    document = json.loads(json.dumps(positions.to_json()))
    back = Positions.from_json(document)
    assert back.offsets == offsets
    assert own.items() <= back.identities.items() <= positions.identities.items()
    for queue in offsets:
        assert back.same_topic(queue, None)
        if known:
            assert back.same_topic(queue, own[queue.topic, queue.broker])
            assert not back.same_topic(queue, -1)
            assert not back.same_topic(queue, own[queue.topic, queue.broker] + 1), "the topic's namesake"
    if offsets:
        assert parse_starting_offsets(json.dumps(document)).identities == back.identities


@given(st.sets(queues, min_size=1, max_size=8))
def test_assignments(chosen: set[Queue]) -> None:
    document: dict[str, dict[str, list[int]]] = {}
    for queue in chosen:
        document.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.queue_id)
    assert parse_assignment(json.dumps(document)) == chosen


def test_words_in_any_case() -> None:
    assert parse_starting_offsets(" Earliest ") == parse_ending_offsets("earliest") == ALL_EARLIEST
    assert parse_starting_offsets("LATEST") == ALL_LATEST


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oldest",
        "[]",
        "{}",
        "7",
        '{"t": 1}',
        '{"t": {"0": 23}}',
        '{"t": {"b": 3}}',
        '{"t": {"b": {"x": 1}}}',
        '{"t": {"b": {"-1": 1}}}',
        '{"t": {"b": {"2147483648": 1}}}',
        '{"t": {"b": {"0": -3}}}',
        '{"t": {"b": {"0": 1.5}}}',
        '{"t": {"b": {"0": true}}}',
        '{"t": {"b": {"0": "1"}}}',
        '{"t": {"b": {"0": 9223372036854775808}}}',
        '{"t": {"b": {"0": 1, "00": 2}}}',
        '{"t": {"b": {"0": 1, "0": 2}}}',
        '{"t": {"b": {"0": 1, "topicIdentity": -1}}}',
        '{"t": {"b": {"0": 1, "topicIdentity": "1"}}}',
        '{"t": {"b": {"0": 1, "topicIdentity": true}}}',
        '{"t": {"b": {"0": 1}}, "t": {"b": {"0": 1}}}',
    ],
)
def test_illegal_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_starting_offsets(text)


def test_kafkas_form_gets_a_hint_where_the_broker_belongs() -> None:
    with pytest.raises(ValueError, match="the broker's name between topic 't' and its queues"):
        parse_starting_offsets('{"t": {"0": 23}}')


@pytest.mark.parametrize(
    "text",
    ["{}", '{"t": {"b": []}}', '{"t": {"b": [1, 1]}}', '{"t": {"b": {"0": 1}}}', '{"t": {"b": [true]}}', "t"],
)
def test_a_malformed_assignment_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_assignment(text)
