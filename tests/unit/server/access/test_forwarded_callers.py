"""Native calls that a node of the replica group forwards: who is the caller at its leader."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from tests.support.logs import logged
from tests.unit.server.access.access_here import LOOPBACK, AccessHere, Context, signed
from tests.unit.server.access.test_audit import CREATE, audited, unary
from tests.unit.server.access.test_quotas_at_the_door import Door
from trovemq_broker.server.access.gate import Caller
from trovemq_daemon.peers import Peer
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import CALLER_KEY, PEER_KEY, signed_path
from trovemq_proto.v1 import admin_pb2

PATH = "/trovemq.v1.MessageService/Send"
CLIENT = "ipv4:10.0.0.9:5000"
NODE = Peer("10.0.0.1", True)
KEYS: tuple[tuple[str, Any], ...] = ((PEER_KEY, CLIENT), (CALLER_KEY, b"alice"))


@pytest.fixture
def here() -> AccessHere:
    made = AccessHere()
    made.user("brokers", is_super=True)
    made.user("alice")
    made.user("bob")
    return made


def caller(here: AccessHere, node: str, signed_for: str, *keys: tuple[str, Any]) -> Caller:
    metadata = (*signed(here.log_in(node), 0, signed_for), *keys)
    return here.gate.caller(here.gate.credentials(PATH, metadata), NODE)


def test_the_client_of_a_forwarded_call_is_its_caller(here: AccessHere) -> None:
    found = caller(here, "brokers", signed_path(PATH, CLIENT, "alice"), *KEYS)
    assert (found.access_key, found.source) == ("alice", "10.0.0.9")
    assert found.audited_source == "10.0.0.9 through brokers at 10.0.0.1"


@fake_time
@pytest.mark.parametrize(("user", "outcome"), [("alice", "OK"), ("bob", "ACCESS_DENIED")])
async def test_the_audit_did_not_say_who_had_named_the_user(user: str, outcome: str) -> None:
    """A super user can name any user and any address."""
    door = Door()
    door.here.user("bob")
    door.here.user("brokers", is_super=True)
    key = door.here.log_in("brokers")
    signature = signed(key, 0, signed_path(CREATE, CLIENT, user))
    context = Context((*signature, (PEER_KEY, CLIENT), (CALLER_KEY, user.encode())))
    data = key.sign(0, 0, admin_pb2.CreateTopicRequest(topic="orders").SerializeToString())
    handler = door.guarded(CREATE, unary(admin_pb2.TopicDescription(), admin_pb2.CreateTopicRequest))
    with logged() as log:
        with suppress(TroveError):
            await handler.unary_unary(data, context)
        door.gate.flush_logs()
    (found,) = audited(log.getvalue())
    assert (found["user"], found["outcome"]) == (user, outcome)
    assert found["source"].strip('"') == "10.0.0.9 through brokers at 127.0.0.1"


def test_a_user_named_another_one(here: AccessHere) -> None:
    with pytest.raises(TroveError, match="bob may not call for other users"):
        caller(here, "bob", signed_path(PATH, CLIENT, "alice"), *KEYS)


def test_the_client_of_a_forwarded_call_was_changed_on_its_way(here: AccessHere) -> None:
    with pytest.raises(TroveError, match="not signed by its session"):
        caller(here, "brokers", signed_path(PATH, CLIENT, "bob"), *KEYS)
    with pytest.raises(TroveError, match="not signed by its session"):
        caller(here, "brokers", signed_path(PATH, "ipv4:10.0.0.8:5000", "alice"), *KEYS)


@pytest.mark.parametrize("keys", [KEYS, ()])
def test_a_leader_that_did_not_know_the_keys_took_the_node_for_the_caller(
    here: AccessHere, keys: tuple[tuple[str, Any], ...]
) -> None:
    """No keys: as a leader of the version before reads the call. It has to refuse it."""
    for_client, plain = signed_path(PATH, CLIENT, "alice"), PATH
    with pytest.raises(TroveError, match="not signed by its session"):
        caller(here, "brokers", plain if keys else for_client, *keys)
    with pytest.raises(TroveError, match="not signed by its session"):
        here.gate.caller(here.gate.credentials(PATH, signed(here.log_in("brokers"), 1, for_client)), LOOPBACK)
