"""Names and endpoints of the v2 protocol."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.server.wire.resources import (
    check_endpoints,
    endpoints_of,
    group_name,
    message_types,
    topic_to_read,
    topic_to_send,
)
from trovemq_broker.server.wire.statuses import code_of
from trovemq_daemon.addresses import Address
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_store.topics.topics import MESSAGE_TYPES, TopicConfig

SYSTEM_TOPICS = (
    "rmq_sys_anything",
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "BenchmarkTest",
    "CHECKPOINT_TOPIC",
)


def resource(name: str, namespace: str = "") -> v2.Resource:
    return v2.Resource(name=name, resource_namespace=namespace)


@pytest.mark.parametrize("name", [*SYSTEM_TOPICS, "", " ", "a b", "a.b", "täg", "a" * 128])
def test_illegal_topics(name: str) -> None:
    for check in (topic_to_read, topic_to_send):
        with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
            check(resource(name))


@pytest.mark.parametrize("name", ["%RETRY%group", "%DLQ%group", "%DLQ%" + "g" * 250])
def test_retry_and_dead_letter_topics_are_read_only(name: str) -> None:
    assert topic_to_read(resource(name)) == name
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        topic_to_send(resource(name))


def test_a_dead_letter_topic_is_bounded_too() -> None:
    for name in ("%DLQ%" + "g" * 251, "%DLQ%a b"):
        with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
            topic_to_read(resource(name))


@pytest.mark.parametrize("name", ["", "g" * 121, "a b", "CID_RMQ_SYS_x", "TOOLS_CONSUMER", "CID_ONSAPI_PULL"])
def test_illegal_groups(name: str) -> None:
    with pytest.raises(TroveError, match="GROUP_ILLEGAL"):
        group_name(resource(name))


def test_the_longest_names() -> None:
    assert topic_to_send(resource("a" * 127)) == "a" * 127
    assert group_name(resource("g" * 120)) == "g" * 120


def test_a_namespace_is_part_of_the_name() -> None:
    assert topic_to_send(resource("orders", "shop")) == "shop%orders"
    assert topic_to_send(resource("shop%orders", "shop")) == "shop%orders"
    assert topic_to_read(resource("%DLQ%workers", "shop")) == "%DLQ%shop%workers"
    assert group_name(resource("workers", "shop")) == "shop%workers"
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        topic_to_read(resource("TBW102", "shop"))
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        topic_to_read(resource("orders", "a b"))
    with pytest.raises(TroveError, match="TOPIC_ILLEGAL"):
        topic_to_read(resource("", "shop"))


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_is_a_name_or_a_named_error(name: str, namespace: str) -> None:
    for check, symbol in ((topic_to_read, "TOPIC_ILLEGAL"), (group_name, "GROUP_ILLEGAL")):
        fault = None
        try:
            found = check(resource(name, namespace))
        except TroveError as error:
            fault = error
        if fault is None:
            assert 0 < len(found) <= 255
            assert found.isascii()
        else:
            assert fault.symbol == symbol
            assert len(fault.message) < 1_000


def endpoints(scheme: v2.AddressScheme, *addresses: tuple[str, int]) -> v2.Endpoints:
    return v2.Endpoints(
        scheme=scheme, addresses=[v2.Address(host=host, port=port) for host, port in addresses]
    )


@pytest.mark.parametrize(
    "legal",
    [
        endpoints(v2.IPv4, ("127.0.0.1", 8081)),
        endpoints(v2.IPv4, ("10.0.0.1", 1), ("10.0.0.2", 65_535)),
        endpoints(v2.IPv6, ("::1", 8081)),
        endpoints(v2.DOMAIN_NAME, ("broker.example", 80)),
    ],
)
def test_legal_endpoints(legal: v2.Endpoints) -> None:
    check_endpoints(legal)


@pytest.mark.parametrize(
    "illegal",
    [
        endpoints(v2.ADDRESS_SCHEME_UNSPECIFIED, ("127.0.0.1", 8081)),
        endpoints(v2.IPv4),
        endpoints(v2.IPv4, ("", 8081)),
        endpoints(v2.IPv4, ("a b", 8081)),
        endpoints(v2.IPv4, ("10.0.0.1", 0)),
        endpoints(v2.IPv4, ("10.0.0.1", 65_536)),
        endpoints(v2.IPv4, ("h" * 256, 8081)),
        endpoints(v2.DOMAIN_NAME, ("a", 80), ("b", 80)),
        endpoints(v2.IPv4, *[("10.0.0.1", 80)] * 65),
    ],
)
def test_illegal_endpoints(illegal: v2.Endpoints) -> None:
    with pytest.raises(TroveError) as caught:
        check_endpoints(illegal)
    assert code_of(caught.value) == v2.ILLEGAL_ACCESS_POINT


def test_endpoints_of_an_address_are_legal() -> None:
    for host, scheme in (("10.0.0.1", v2.IPv4), ("::1", v2.IPv6), ("broker-a", v2.DOMAIN_NAME)):
        found = endpoints_of(Address(host, 8081))
        check_endpoints(found)
        assert (found.scheme, found.addresses[0].host) == (scheme, host)


def test_every_topic_type_takes_something() -> None:
    """A route without a type makes every client refuse to send."""
    for topic_type in MESSAGE_TYPES:
        assert message_types(TopicConfig("t", 1, 1).with_message_type(topic_type))
    fifo, mixed, priority = (
        TopicConfig("t", 1, 1).with_message_type(one) for one in ("FIFO", "MIXED", "PRIORITY")
    )
    assert message_types(fifo) == (v2.FIFO,)
    assert set(message_types(mixed)) == {v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION}
    assert message_types(priority) == (v2.PRIORITY,)
    assert v2.PRIORITY in message_types(mixed.with_options({"order": "priority"}))
