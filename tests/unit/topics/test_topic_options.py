"""The options of topics and the attributes that keep them."""

from __future__ import annotations

import json

import pytest

from trovemq_proto.errors import TroveError
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.topic_options import TopicOptions, options_of, with_options
from trovemq_store.topics.topics import TopicTable
from trovemq_store.topics.topics_file import TOPICS_PATH


def test_options_are_kept_as_attributes_of_the_topic_and_read_back() -> None:
    files = MemoryFileSystem()
    TopicTable.load(files).create(
        "T", options={"deduplicate": "1h", "order": "priority", "indexed_properties": "carrier, origin"}
    )
    attributes = json.loads(files.read_bytes(TOPICS_PATH))["topicConfigTable"]["T"]["attributes"]
    assert attributes == {
        "message.type": "NORMAL",
        "trovemq.deduplicate": "1h",
        "trovemq.order": "priority",
        "trovemq.indexed.properties": "carrier, origin",
    }
    again = TopicTable.load(files).require("T").options
    assert again == TopicOptions(3_600_000, "priority", "time", 0, ("carrier", "origin"))


def test_off_and_a_default_take_the_attribute_away() -> None:
    table = TopicTable.load(MemoryFileSystem())
    table.create("T", options={"deduplicate": "1h", "order": "priority"})
    altered = table.alter("T", options={"deduplicate": "off", "order": "log"})
    assert altered.options == TopicOptions()
    assert altered.attributes == {"message.type": "NORMAL"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"deduplicate": "0s"}, "deduplicate"),
        ({"deduplicate": "1"}, "deduplicate"),
        ({"deduplicate": "367d"}, "deduplicate"),
        ({"order": "newest"}, "order"),
        ({"retention": "for ever"}, "retention"),
        ({"writes": "never"}, "writes"),
        ({"acknowledge": "all"}, "acknowledge"),
        ({"retention_age_max": "7d"}, "retention_age_max"),
        ({"retention": "time", "retention_age_max": "7d"}, "retention_age_max"),
        ({"indexed_properties": "a,a"}, "indexed_properties"),
        ({"indexed_properties": ",".join(f"p{n}" for n in range(17))}, "indexed_properties"),
        ({"indexed_properties": "x" * 128}, "indexed_properties"),
        ({"indexed_properties": "a\x01"}, "indexed_properties"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(TroveError) as caught:
        with_options({}, "NORMAL", changes)
    assert caught.value.symbol == "TOPIC_OPTION_ILLEGAL"
    assert caught.value.fields["option"] == named


def test_order_by_priority_contradicts_fifo_from_either_side() -> None:
    table = TopicTable.load(MemoryFileSystem())
    table.create("P", options={"order": "priority"})
    with pytest.raises(TroveError, match="TOPIC_OPTION_ILLEGAL"):
        table.alter("P", message_type="FIFO")
    with pytest.raises(TroveError, match="TOPIC_OPTION_ILLEGAL"):
        table.create("F", message_type="FIFO", options={"order": "priority"})
    assert table.require("P").message_type == "NORMAL"
    assert "F" not in table


def test_unreadable_attributes_count_as_the_default_and_the_others_stay() -> None:
    attributes = {"trovemq.deduplicate": "soon", "trovemq.retention": "until_acknowledged"}
    assert options_of(attributes) == TopicOptions(retention="until_acknowledged")
