"""Each RPC of each service, as the descriptors have them, by each kind of caller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.unit.server.access.access_here import CLUSTER, LOOPBACK, AccessHere, rocketmq_metadata, signed
from trovemq_broker.security import changes
from trovemq_broker.security.actions import Kind, action_text
from trovemq_broker.server.access.gate import Caller, Credentials, Gate
from trovemq_broker.server.access.needs import EVERY, ROWS, Audit, Level, Row
from trovemq_broker.server.access.refusals import is_rocketmq, refused_reply
from trovemq_broker.server.wire.frames import read_append_frame
from trovemq_daemon.peers import Peer, peer_of
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import admin_pb2 as v2_admin_pb2
from trovemq_proto.rocketmq.v2 import service_pb2 as v2_service_pb2
from trovemq_proto.v1 import (
    admin_pb2,
    biography_pb2,
    broker_pb2,
    cluster_config_pb2,
    consumer_pb2,
    forwarding_pb2,
    group_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    replica_pb2,
    replication_pb2,
    route_pb2,
    search_pb2,
    security_pb2,
    store_pb2,
    transaction_pb2,
)

FILES: tuple[Any, ...] = (
    admin_pb2,
    biography_pb2,
    broker_pb2,
    cluster_config_pb2,
    consumer_pb2,
    forwarding_pb2,
    group_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    replica_pb2,
    replication_pb2,
    route_pb2,
    search_pb2,
    security_pb2,
    store_pb2,
    transaction_pb2,
    v2_admin_pb2,
    v2_service_pb2,
    health_pb2,
    reflection_pb2,
)


def methods() -> Iterator[tuple[str, MethodDescriptor]]:
    for file in FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            name = service.full_name.replace("trovemq.rocketmq.v2", "apache.rocketmq.v2")
            for method in service.methods:
                yield f"/{name}/{method.name}", method


METHODS = dict(methods())


def filled(message_type: Any, depth: int = 3) -> Any:
    """A request in which every name is there."""
    message = message_type()
    oneofs: set[str] = set()
    for field in message_type.DESCRIPTOR.fields:
        group = field.containing_oneof
        if group is not None:
            if group.name in oneofs:
                continue
            oneofs.add(group.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if depth:
                inner = filled(GetMessageClass(field.message_type), depth - 1)
                target = getattr(message, field.name)
                if field.is_repeated:
                    target.add().CopyFrom(inner)
                else:
                    target.CopyFrom(inner)
        elif field.type == field.TYPE_STRING and not field.is_repeated:
            given = {"resource_namespace": "", "producer_id": "alice:p"}
            setattr(message, field.name, given.get(field.name, f"{field.name}-1"))
    return message


def requests_of(path: str) -> list[Any]:
    """Of a stream's messages, each kind."""
    message_type: Any = GetMessageClass(METHODS[path].input_type)
    if path.endswith("/Transact"):
        return [
            message_type(messages={"topic": "a"}),
            message_type(acknowledgements={"group": "g", "topic": "b"}),
        ]
    if path.endswith("/Telemetry"):
        topics = [{"name": "a"}, {"name": "b"}]
        subscriptions = [{"topic": {"name": "c"}}]
        return [
            message_type(settings={"publishing": {"topics": topics}}),
            message_type(settings={"subscription": {"group": {"name": "g"}, "subscriptions": subscriptions}}),
        ]
    if path.endswith("/Append"):
        return [read_append_frame(filled(message_type).SerializeToString())]  # as its service reads it
    if path.endswith("/CheckHalves"):
        return [message_type(start={"topics": ["a", "b"]})]
    return [filled(message_type)]


@pytest.fixture(scope="module")
def here() -> AccessHere:
    made = AccessHere()
    made.user("admin", is_super=True)
    made.user("alice")
    made.user("nobody")
    return made


def caller(name: str) -> Caller:
    return Caller(name, "127.0.0.1", None)


def refusal(gate: Gate, name: str, row: Row, request: Any) -> str:
    try:
        gate.admit(caller(name), row, request)
    except TroveError as error:
        return error.symbol
    return ""


def test_every_rpc_has_a_row_and_every_row_an_rpc() -> None:
    assert sorted(ROWS) == sorted(METHODS)


def test_look_ups_of_operators_are_queries_for_the_quotas() -> None:
    assert {path for path, row in ROWS.items() if row.audit is Audit.READ and not row.is_query} == set()


@pytest.mark.parametrize("path", [path for path in ROWS if ROWS[path].needs is not Level.OPEN])
def test_nobody_calls_without_a_name(here: AccessHere, path: str) -> None:
    shown: list[list[tuple[str, Any]]] = [
        [],
        [("authorization", "Bearer x")],
        [("trovemq-auth-bin", b"x" * 56)],
    ]
    for metadata in shown:
        with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
            here.gate.caller(here.gate.credentials(path, metadata), LOOPBACK)


@pytest.mark.parametrize("path", ROWS)
def test_who_has_no_rule_may_nothing_that_needs_one(here: AccessHere, path: str) -> None:
    row = ROWS[path]
    if row.needs is Level.OPEN:
        assert path.startswith("/grpc.health.v1.Health/") or path.endswith("/Authenticate")
        return
    expected = "" if row.needs is Level.USER else "ACCESS_DENIED"
    assert {refusal(here.gate, "nobody", row, request) for request in requests_of(path)} == {expected}


@pytest.mark.parametrize("path", [path for path in ROWS if ROWS[path].needs is not Level.OPEN])
def test_a_super_user_may_everything(here: AccessHere, path: str) -> None:
    assert [refusal(here.gate, "admin", ROWS[path], request) for request in requests_of(path)] == [""] * len(
        requests_of(path)
    )


@pytest.mark.parametrize("path", [path for path in ROWS if callable(ROWS[path].needs)])
def test_the_needs_of_a_request_are_enough_and_all_of_them_needed(here: AccessHere, path: str) -> None:
    row = ROWS[path]
    assert callable(row.needs)
    for request in requests_of(path):
        needs = list(row.needs(request))
        assert needs, "a request that is filled needs something"
        for left_out in (None, *needs):
            here.without_rules("alice")
            for need in needs:
                if need is not left_out:
                    name = CLUSTER if need.kind is Kind.CLUSTER else need.name
                    here.rule("alice", action_text(need.actions), f"{need.kind}:{name}")
            expected = "" if left_out is None else "ACCESS_DENIED"
            assert refusal(here.gate, "alice", row, request) == expected, left_out


@pytest.mark.parametrize("path", [path for path in ROWS if callable(ROWS[path].needs)])
def test_rights_to_other_names_are_not_enough(here: AccessHere, path: str) -> None:
    row = ROWS[path]
    here.without_rules("alice")
    for kind in Kind:
        here.rule("alice", "All", f"{kind}:other")
    assert {refusal(here.gate, "alice", row, request) for request in requests_of(path)} == {"ACCESS_DENIED"}


@pytest.mark.parametrize("path", [path for path in ROWS if is_rocketmq(path) and callable(ROWS[path].needs)])
def test_rights_to_a_name_are_none_in_another_namespace(here: AccessHere, path: str) -> None:
    """Neither to the same name in none, nor to it in a namespace that begins alike."""
    row = ROWS[path]
    assert callable(row.needs)
    for request in requests_of(path):
        plain = list(row.needs(request))
        if not put_in(request, "eu") or any(need.name == EVERY for need in row.needs(request)):
            continue  # it names no resource, or needs the right to all of them
        here.without_rules("alice")
        for need in plain:
            for name in (need.name, f"eu2%{need.name}"):
                here.rule("alice", "All", f"{need.kind}:{name}")
        here.rule("alice", "All", "Namespace:eu2")
        assert refusal(here.gate, "alice", row, request) == "ACCESS_DENIED"
        here.rule("alice", "All", "Namespace:eu")
        assert refusal(here.gate, "alice", row, request) == ""


def put_in(request: Any, namespace: str) -> bool:
    """Every resource of the request is of the namespace from here on; whether there is one."""
    found = False
    for field, value in request.ListFields():
        if field.message_type is None:
            continue
        for one in value if field.is_repeated else [value]:
            if field.message_type.full_name.endswith(".Resource"):
                one.resource_namespace, found = namespace, True
            else:
                found = put_in(one, namespace) or found
    return found


@pytest.mark.parametrize("path", [path for path in ROWS if callable(ROWS[path].needs)])
def test_a_deny_for_one_name_is_a_deny_for_look_ups_of_all(here: AccessHere, path: str) -> None:
    row = ROWS[path]
    assert callable(row.needs)
    here.without_rules("alice")
    here.rule("alice", "All", "*")
    here.rule("alice", "All", "Topic:secret", allow=False)
    here.rule("alice", "All", "Group:secret", allow=False)
    for request in requests_of(path):
        every = any(need.name == EVERY for need in row.needs(request))
        assert refusal(here.gate, "alice", row, request) == ("ACCESS_DENIED" if every else "")


@pytest.mark.parametrize("path", [path for path in ROWS if is_rocketmq(path)])
def test_each_call_of_rocketmqs_protocol_is_refused_inside_of_its_reply(here: AccessHere, path: str) -> None:
    error = TroveError(_spec("AUTHENTICATION_FAILED"), "who are you?")
    reply = refused_reply(path, error)
    assert METHODS[path].output_type == reply.DESCRIPTOR
    if path.endswith("ChangeLogLevel"):
        assert reply.remark == "who are you?"
    else:
        assert reply.status.code == 40100


def _spec(symbol: str) -> Any:
    from trovemq_proto.errors import by_symbol

    return by_symbol(symbol)


def test_without_authorisation_users_may_everything_but_administer_users() -> None:
    here = AccessHere(authorization=False)
    here.user("alice")
    refused = {
        path
        for path, row in ROWS.items()
        if row.needs is not Level.OPEN
        and any(refusal(here.gate, "alice", row, request) for request in requests_of(path))
    }
    assert refused == {path for path, row in ROWS.items() if row.needs is Level.SUPER}


def test_signatures_of_rocketmqs_clients_are_for_its_protocol(here: AccessHere) -> None:
    send, native = "/apache.rocketmq.v2.MessagingService/SendMessage", "/trovemq.v1.MessageService/Send"
    metadata = rocketmq_metadata("alice")
    assert here.gate.caller(here.gate.credentials(send, metadata), LOOPBACK).access_key == "alice"
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        here.gate.caller(here.gate.credentials(native, metadata), LOOPBACK)


def test_signatures_of_rocketmqs_clients_are_taken_where_nobody_listens(here: AccessHere) -> None:
    path = "/apache.rocketmq.v2.MessagingService/SendMessage"
    credentials = here.gate.credentials(path, rocketmq_metadata("alice"))
    assert here.gate.caller(credentials, Peer("10.0.0.1", True)).access_key == "alice"
    with pytest.raises(TroveError, match="over TLS"):
        here.gate.caller(credentials, Peer("10.0.0.1", False))


@pytest.mark.parametrize("name", ["trovemq-auth-bin", "authorization", "x-mq-date-time"])
def test_a_header_that_is_there_twice_is_refused(here: AccessHere, name: str) -> None:
    path = "/apache.rocketmq.v2.MessagingService/SendMessage"
    signatures = (*rocketmq_metadata("alice"), *signed(here.log_in("alice"), 0, path))
    metadata: list[tuple[str, Any]] = [*signatures, (name, "x")]
    with pytest.raises(TroveError, match="twice"):
        here.gate.caller(here.gate.credentials(path, metadata), LOOPBACK)


def test_a_wrong_session_is_not_made_good_by_a_right_signature(here: AccessHere) -> None:
    path = "/apache.rocketmq.v2.MessagingService/SendMessage"
    metadata: list[tuple[str, Any]] = [*rocketmq_metadata("alice"), ("trovemq-auth-bin", b"x" * 56)]
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        here.gate.caller(here.gate.credentials(path, metadata), LOOPBACK)


def test_before_the_users_are_read_nobody_is_admitted() -> None:
    gate = Gate(authorization=True, cluster=CLUSTER, clock_ms=lambda: EpochMs(0))
    path = "/apache.rocketmq.v2.MessagingService/SendMessage"
    shown: list[list[tuple[str, Any]]] = [[*rocketmq_metadata("alice")], [("trovemq-auth-bin", b"x" * 56)]]
    for metadata in shown:
        with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
            gate.caller(gate.credentials(path, metadata), LOOPBACK)


@pytest.mark.parametrize(
    ("name", "types", "expected"),
    [
        ("ipv4:127.0.0.1:5000", (), Peer("127.0.0.1", True)),
        ("ipv4:10.0.0.1:5000", (), Peer("10.0.0.1", False)),
        ("ipv4:10.0.0.1:5000", (b"ssl",), Peer("10.0.0.1", True)),
        ("ipv4:10.0.0.1:5000", (b"insecure",), Peer("10.0.0.1", False)),
        ("ipv6:%5B::1%5D:5000", (), Peer("::1", True)),
        ("ipv6:[fd00::1]:5000", (), Peer("fd00::1", False)),
        ("ipv6:%5B::ffff:10.0.0.1%5D:5000", (), Peer("10.0.0.1", False)),
        ("unix:/run/x", (), Peer("", True)),
        ("", (), Peer("", False)),
        ("dns:127.0.0.1:80", (), Peer("", False)),
    ],
)
def test_the_other_end(name: str, types: tuple[bytes, ...], expected: Peer) -> None:
    assert peer_of(name, {"transport_security_type": types}) == expected


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({"x509_common_name": [b"alice"]}, "alice"),
        ({"x509_common_name": [b"alice", b"admin"]}, ""),
        ({"x509_common_name": [b"\xff"]}, "\ufffd"),
        ({"x509_subject_alternative_name": [b"alice"]}, ""),
        ({"x509_common_name": [b"alice"], "transport_security_type": [b"insecure"]}, ""),
    ],
)
def test_the_name_of_a_certificate(security: dict[str, list[bytes]], expected: str) -> None:
    shown = {"transport_security_type": [b"ssl"], **security}
    assert peer_of("ipv4:10.0.0.1:5000", shown).certificate_name == expected


BY_CERTIFICATE = Peer("10.0.0.1", True, "alice")


def with_certificates(here: AccessHere) -> Gate:
    gate = Gate(authorization=True, cluster=CLUSTER, clock_ms=lambda: EpochMs(0), certificates=True)
    gate.open(here.table, here.sessions)
    return gate


@pytest.mark.parametrize(
    "path", ["/trovemq.v1.MessageService/Send", "/apache.rocketmq.v2.MessagingService/SendMessage"]
)
def test_a_certificate_is_a_user_where_that_is_set(here: AccessHere, path: str) -> None:
    gate, without = with_certificates(here), here.gate
    assert gate.caller(gate.credentials(path, ()), BY_CERTIFICATE) == Caller("alice", "10.0.0.1", None)
    for one, peer in (
        (without, BY_CERTIFICATE),
        (gate, Peer("10.0.0.1", True)),
        (gate, Peer("10.0.0.1", True, "mallory")),
    ):
        with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
            one.caller(one.credentials(path, ()), peer)
    here.apply(changes.set_enabled(here.table.state, "alice", enabled=False))
    try:
        with pytest.raises(TroveError, match="disabled"):
            gate.caller(gate.credentials(path, ()), BY_CERTIFICATE)
    finally:
        here.apply(changes.set_enabled(here.table.state, "alice", enabled=True))


def test_a_wrong_signature_is_not_made_good_by_a_certificate(here: AccessHere) -> None:
    gate, path = with_certificates(here), "/apache.rocketmq.v2.MessagingService/SendMessage"
    shown: list[list[tuple[str, Any]]] = [
        [*rocketmq_metadata("alice", "wrong-secret")],
        [("trovemq-auth-bin", b"x" * 56)],
    ]
    for metadata in shown:
        with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
            gate.caller(gate.credentials(path, metadata), BY_CERTIFICATE)


def test_a_session_counts_before_a_certificate(here: AccessHere) -> None:
    here.user("billing")
    gate, path = with_certificates(here), "/trovemq.v1.MessageService/Send"
    credentials = gate.credentials(path, signed(here.log_in("billing"), 0, path))
    assert gate.caller(credentials, BY_CERTIFICATE).access_key == "billing"


def test_refusals_are_counted_and_logged_once_a_minute(here: AccessHere, caplog: Any) -> None:
    gate = Gate(authorization=True, cluster=CLUSTER, clock_ms=lambda: EpochMs(0))
    for _ in range(5):
        gate.refused("/a/b", TroveError(_spec("ACCESS_DENIED")), "10.0.0.1", "alice")
    assert gate.refusals.counts == {"ACCESS_DENIED": 5}
    assert len(gate.refusals.log) == 1


def test_credentials_are_not_shown(here: AccessHere) -> None:
    credentials = here.gate.credentials("/x/y", rocketmq_metadata("alice"))
    assert isinstance(credentials, Credentials)
    assert "canary" not in repr(credentials)
