"""The traffic of each topic in a broker's statistics."""

from __future__ import annotations

from trovemq_broker.security.actions import Kind
from trovemq_broker.server.access.needs import ROWS
from trovemq_broker.server.monitoring.traffic import TopicTraffic, Traffic
from trovemq_proto.v1 import admin_pb2
from trovemq_store.engine.steps import finished


def busy(*topics: tuple[str, int, int]) -> Traffic:
    """Of each topic this many messages in and out, of 100 bytes each."""
    traffic = Traffic()
    for topic, into, out in topics:
        traffic.appended(topic, into, 100 * into)
        traffic.fetched(topic, out, 100 * out)
    return traffic


def test_each_topic_with_its_messages_and_bytes() -> None:
    rows, left_out = finished(busy(("orders", 3, 1), ("read-only", 0, 2)).busiest(10))
    assert sorted(rows, key=lambda row: row.topic) == [
        TopicTraffic("orders", 3, 300, 1, 100),
        TopicTraffic("read-only", 0, 0, 2, 200),
    ]
    assert left_out == 0


def test_of_too_many_topics_the_busiest_are_kept_and_the_rest_counted() -> None:
    traffic = busy(*((f"topic-{number}", number + 1, 0) for number in range(500)))
    rows, left_out = finished(traffic.busiest(3))
    assert sorted(row.messages_in for row in rows) == [498, 499, 500]
    assert left_out == 497


def test_a_deleted_topic_is_in_the_statistics_no_more() -> None:
    traffic = busy(("orders", 1, 1), ("gone", 1, 1))
    traffic.forget("gone")
    assert [row.topic for row in finished(traffic.busiest(10))[0]] == ["orders"]


def test_statistics_named_topics_that_their_reader_may_not_know() -> None:
    reply = admin_pb2.Statistics(counters={"messages_in": 2})
    for topic in ("mine", "other"):
        reply.topics.add(topic=topic, messages_in=1)
    show = ROWS["/trovemq.v1.AdminService/GetStatistics"].show
    assert show is not None
    shown = show(reply, lambda kind, name: kind is Kind.TOPIC and name == "mine")
    assert [one.topic for one in shown.topics] == ["mine"]
    assert shown.counters == {"messages_in": 2}
