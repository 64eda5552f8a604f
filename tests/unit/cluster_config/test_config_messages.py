"""The values of the configuration as protobuf messages, and what is refused."""

from __future__ import annotations

import pytest

from trovemq_broker.cluster_config import protobuf
from trovemq_broker.cluster_config.entries import Entry, Generation, Kind, Position
from trovemq_broker.cluster_config.messages import Hello, Report, TablePart
from trovemq_broker.cluster_config.table import NO_TABLE, Head
from trovemq_broker.cluster_config.take_over import CopyStatus
from trovemq_broker.server.wire import config_messages
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError
from trovemq_proto.v1 import cluster_config_pb2 as pb

FIRST, SECOND = Generation(1, "a" * 16), Generation(2, "b" * 16)
AT = Position(SECOND, 7)
HEAD = Head("c" * 16, "broker-a", SECOND, 7, "d" * 16, 3, (Position(FIRST, 5),))
TOPIC = Entry(Kind.TOPIC, "orders", Position(FIRST, 2), AT, {"x": "1"}, {"broker-a": 4})
USER = Entry(Kind.USER, "ann", AT, AT, secrets=b"\0secret")
GONE = Entry(Kind.GROUP, "g", AT, AT, deleted=True)


@pytest.mark.parametrize("base", [None, Position(FIRST, 5)])
def test_a_part_is_the_same_on_the_other_side(base: Position | None) -> None:
    part = TablePart(base, HEAD, 2, True, (TOPIC, USER, GONE))
    wire = pb.ConfigPart.FromString(protobuf.part_to(part).SerializeToString())
    assert protobuf.part_of(wire) == part


def test_nothing_to_send_is_a_part_without_a_head() -> None:
    wire = pb.ConfigPart.FromString(config_messages.part_reply(None))
    assert wire.is_current
    assert not wire.HasField("head")
    assert protobuf.part_of(wire) is None


@pytest.mark.parametrize(
    "hello", [Hello("b", "s"), Hello("b", "s", HEAD.cluster, HEAD.position, HEAD.digest, SECOND)]
)
def test_a_hello_and_a_report_are_the_same_on_the_other_side(hello: Hello) -> None:
    assert config_messages.first_of(protobuf.hello_to(hello)) == hello
    assert config_messages.report_of(protobuf.report_to(Report(AT))) == Report(AT)


@pytest.mark.parametrize("head", [HEAD, NO_TABLE])
def test_a_copy_is_the_same_on_the_other_side(head: Head) -> None:
    copy = CopyStatus("broker-a", head, SECOND)
    assert protobuf.copy_of(protobuf.copy_to(copy)) == copy


def refused(spec: ErrorSpec, read: object, message: object) -> str:
    with pytest.raises(TroveError) as found:
        read(message)  # type: ignore[operator]
    assert found.value.spec is spec
    return found.value.message


def test_an_unknown_kind_and_a_later_format_say_to_upgrade() -> None:
    entry = protobuf.entry_to(TOPIC)
    entry.kind = "pipeline"
    text = refused(errors.STORE_NEWER, protobuf.entry_of, entry)
    assert "'pipeline'" in text
    assert "upgrade" in text
    head = protobuf.head_to(HEAD)
    head.format = 2
    assert "format 2" in refused(errors.STORE_NEWER, protobuf.head_of, head)


@pytest.mark.parametrize(
    "request_",
    [
        pb.WatchConfigRequest(),
        pb.WatchConfigRequest(report={}),
        pb.WatchConfigRequest(hello={"broker": "b"}),
        pb.WatchConfigRequest(hello={"broker": "b", "store_id": "s"}),
        pb.WatchConfigRequest(hello={"broker": "b" * 513, "store_id": "s", "format": 1}),
        pb.WatchConfigRequest(
            hello={"broker": "b", "store_id": "s", "format": 1, "promised": {"number": 1, "mark": "x"}}
        ),
    ],
)
def test_a_stream_that_begins_with_anything_else_is_refused(request_: pb.WatchConfigRequest) -> None:
    refused(errors.REQUEST_ILLEGAL, config_messages.first_of, request_)


def test_a_second_hello_and_a_promise_without_its_owner_are_refused() -> None:
    refused(errors.REQUEST_ILLEGAL, config_messages.report_of, protobuf.hello_to(Hello("b", "s")))
    generation = protobuf.generation_to(SECOND)
    request = pb.PromiseGenerationRequest(generation=generation, cluster="c")
    refused(errors.REQUEST_ILLEGAL, config_messages.promise_of, request)
