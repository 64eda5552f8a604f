"""A thousand changes of a call that is right: none of them reaches a handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import grpc

from tests.support.call_forms import grpc_form
from tests.support.fake_loop import fake_time
from tests.unit.server.access.access_here import DATE, LOOPBACK, AccessHere, Context, rocketmq_metadata
from tests.unit.server.access.test_guard import FETCH, SEND
from trovemq_broker.server.access.guard import AccessGuard
from trovemq_daemon.grpc_transport import is_end
from trovemq_proto.authentication.calls import METADATA_KEY, SigningKey
from trovemq_proto.errors import TroveError
from trovemq_proto.v1 import message_pb2

COUNT = 1_000
V2_SEND = "/apache.rocketmq.v2.MessagingService/SendMessage"
BODY = message_pb2.SendRequest(topic="orders").SerializeToString()
FRAMES = [
    message_pb2.FetchRequest(topic="orders", fetch_id=number).SerializeToString() for number in range(3)
]


class Call:
    """What a client of alice sends: a credential, and the signed messages behind it."""

    def __init__(self, key: SigningKey, number: int, path: str) -> None:
        self.number = number
        self.credential = key.credential(number, path)
        bodies = FRAMES if path == FETCH else [BODY]
        self.messages = [key.sign(number, place, body) for place, body in enumerate(bodies)]


Change = Callable[[Call, Random, SigningKey, str], None]


def flipped(data: bytes, random: Random) -> bytes:
    place = random.randrange(len(data))
    return data[:place] + bytes([data[place] ^ random.randrange(1, 256)]) + data[place + 1 :]


def change_body(call: Call, random: Random, _key: SigningKey, _path: str) -> None:
    place = random.randrange(len(call.messages))
    call.messages[place] = flipped(call.messages[place], random)


def change_length(call: Call, random: Random, _key: SigningKey, _path: str) -> None:
    place = random.randrange(len(call.messages))
    message, size = call.messages[place], random.randrange(1, 24)
    call.messages[place] = random.choice([message[:-size], message[size:], message + random.randbytes(size)])


def change_credential(call: Call, random: Random, _key: SigningKey, _path: str) -> None:
    call.credential = flipped(call.credential, random)


def change_path(call: Call, random: Random, key: SigningKey, path: str) -> None:
    call.credential = key.credential(call.number, random.choice([SEND + "x", path.lower(), FETCH + "/", ""]))


def change_number(call: Call, random: Random, key: SigningKey, _path: str) -> None:
    """The messages of another call."""
    place = random.randrange(len(call.messages))
    body = FRAMES[place] if len(call.messages) > 1 else BODY
    call.messages[place] = key.sign(call.number + random.randrange(1, 100), place, body)


def change_session(call: Call, random: Random, _key: SigningKey, path: str) -> None:
    """The right session's id, with a key that its client does not have."""
    other = SigningKey(call.credential[:16], random.randbytes(32))
    call.credential = other.credential(call.number, path)


def change_order(call: Call, random: Random, key: SigningKey, _path: str) -> None:
    if len(call.messages) == 1:
        call.messages = [key.sign(call.number, 1, BODY)]
    else:
        call.messages.insert(0, call.messages.pop(random.randrange(1, 3)))


CHANGES: tuple[Change, ...] = (
    *(change_body, change_length, change_credential, change_path, change_number, change_session),
    change_order,
)


@fake_time
async def test_no_changed_call_of_our_scheme_is_taken_whole() -> None:
    here, random, seen = AccessHere(), Random(18), Counter[str]()
    here.user("alice")
    here.rule("alice", "All", "*")
    key = here.log_in("alice")

    async def send(_request: Any, _context: Any) -> Any:
        seen[SEND] += 1
        return message_pb2.AppendReply()

    async def fetch(_requests: Any, context: Any) -> None:
        while not is_end(await context.read()):
            pass
        seen[FETCH] += 1

    guard = AccessGuard(here.gate)
    unary = grpc.unary_unary_rpc_method_handler(send, message_pb2.SendRequest.FromString)
    stream = grpc.stream_stream_rpc_method_handler(fetch, message_pb2.FetchRequest.FromString)
    handlers = {
        SEND: grpc_form(guard.handler(SEND, unary)).unary_unary,
        FETCH: guard.handler(FETCH, stream).stream_stream,
    }

    async def attempt(path: str, call: Call) -> str:
        context = Context([(METADATA_KEY, call.credential)], list(call.messages))
        try:
            await handlers[path](call.messages[0] if path == SEND else None, context)
        except TroveError as error:
            return error.symbol
        return ""

    for number in range(0, 2 * COUNT, 2):
        path, change = (SEND, FETCH)[number // 2 % 2], CHANGES[number // 2 % len(CHANGES)]
        right, wrong = Call(key, number, path), Call(key, number + 1, path)
        assert await attempt(path, right) == "", "the call itself is right"
        assert await attempt(path, right) == "AUTHENTICATION_FAILED", "once"
        change(wrong, random, key, path)
        assert await attempt(path, wrong) == "AUTHENTICATION_FAILED", (number, change)

    assert seen == {SEND: COUNT // 2, FETCH: COUNT // 2}


def test_no_changed_signature_of_rocketmqs_clients_is_taken() -> None:
    here, random = AccessHere(), Random(18)
    here.user("alice")
    right = dict(rocketmq_metadata("alice"))
    parts = {
        "algorithm": "MQv2-HMAC-SHA1",
        "credential": "alice",
        "headers": "x-mq-date-time",
        "signature": right["authorization"].rpartition("=")[2],
    }
    letters = "0123456789abcdefghijklmnopqrstuvwxyz-/="

    def outcome(authorization: str, date: str) -> str:
        metadata = {**right, "authorization": authorization, "x-mq-date-time": date}
        try:
            here.gate.caller(here.gate.credentials(V2_SEND, metadata.items()), LOOPBACK)
        except TroveError as error:
            return error.symbol
        return "accepted"

    assert outcome(right["authorization"], DATE) == "accepted"
    for number in range(COUNT):
        name = (*parts, "date")[number % 5]
        text = DATE if name == "date" else parts[name]
        place = random.randrange(len(text))
        different = [one for one in letters if one != text[place].lower()]
        if name == "credential":
            different.remove("/")  # what follows it is not part of the name
        changed = text[:place] + random.choice(different) + text[place + 1 :]
        date = changed if name == "date" else DATE
        header = right["authorization"] if name == "date" else right["authorization"].replace(text, changed)
        assert outcome(header, date) == "AUTHENTICATION_FAILED", (number, header, date)
