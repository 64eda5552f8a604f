"""Handshakes, sessions and the signatures of their calls: nothing but the real client is accepted."""

from __future__ import annotations

import base64
import hmac
import itertools
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.security import changes
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.sessions import (
    CALLS_AHEAD_MAX,
    HANDSHAKE_TIME_MAX_MS,
    HANDSHAKES_MAX,
    SESSION_TIME_MAX_MS,
    SESSIONS_OF_USER_MAX,
    CallWindow,
    Session,
    Sessions,
)
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.authentication.calls import SigningKey, message_checker, message_signer
from trovemq_proto.authentication.scram import (
    ClientFirst,
    ClientHandshake,
    ScramError,
    ServerHandshake,
    Verifier,
    client_first,
)
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.memory import MemoryFileSystem

SECRET = b"canary-secret-1"
NONCE = "client-nonce-0123456789"
PATH = "/trovemq.v1.MessageService/Send"


@dataclass
class Server:
    table: SecurityTable
    sessions: Sessions

    def change(self, after: changes.SecurityState) -> None:
        change = self.table.begin(after)
        change.run()
        self.table.finish(change)

    def log_in(
        self, secret: bytes = SECRET, name: str = "alice", now_ms: EpochMs = EpochMs(0)
    ) -> tuple[SigningKey, Session]:
        """The client's key and the server's session after a handshake."""
        first = client_first(name, NONCE)
        handshake = ClientHandshake(first, self.sessions.begin(first, now_ms), secret)
        answer, session = self.sessions.finish(handshake.message, now_ms)
        return SigningKey(session.key.session_id, handshake.finish(answer)), session


@pytest.fixture
def server() -> Server:
    numbers = itertools.count()

    def random_bytes(size: int) -> bytes:
        return next(numbers).to_bytes(size)

    table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), random_bytes)
    made = Server(table, Sessions(table, bytes(32), random_bytes))
    user = new_user("alice", UserKind.NORMAL, SECRET, salt=b"0123456789abcdef", now_ms=0)
    made.change(changes.add_user(table.state, user))
    return made


def test_the_example_of_rfc_7677() -> None:
    first = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server = ServerHandshake(ClientFirst.parse(first), salt, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    client = ClientHandshake(first, server.message, b"pencil")
    assert client.message == (
        "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        "p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    _, answer, key = server.check(client.message, (Verifier.of(b"pencil", salt),))
    assert answer == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.finish(answer) == key


def test_a_session_signs_calls_of_its_user(server: Server) -> None:
    key, session = server.log_in()
    call = server.sessions.call(key.credential(0, PATH), PATH, 0)
    assert call.session is session
    assert server.sessions.user_of(session).access_key == "alice"


def test_a_call_that_is_sent_again_is_refused(server: Server) -> None:
    key, _ = server.log_in()
    credential = key.credential(5, PATH)
    server.sessions.call(credential, PATH, 0)
    with pytest.raises(TroveError, match="made before"):
        server.sessions.call(credential, PATH, 0)
    server.sessions.call(key.credential(4, PATH), PATH, 0)


@given(st.integers(0, 55), st.integers(1, 255))
def test_a_changed_credential_is_refused(place: int, change: int) -> None:
    key = SigningKey(bytes(16), bytes(range(32)))
    credential = bytearray(key.credential(7, PATH))
    credential[place] ^= change
    assert key.check_credential(bytes(credential), PATH) is None


@pytest.mark.parametrize("path", ["", PATH + "x", PATH.lower(), "/trovemq.v1.AdminService/DeleteTopic"])
def test_a_credential_holds_for_its_path_alone(server: Server, path: str) -> None:
    key, _ = server.log_in()
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.sessions.call(key.credential(0, PATH), path, 0)


@given(st.binary(max_size=80))
def test_random_credentials_are_refused(credential: bytes) -> None:
    assert SigningKey(bytes(16), b"k" * 32).check_credential(credential, PATH) is None


@given(st.binary(max_size=64), st.data())
def test_a_changed_message_is_refused(message: bytes, data: st.DataObject) -> None:
    key = SigningKey(bytes(16), b"k" * 32)
    signed = bytearray(key.sign(1, 0, message))
    assert message_checker(key, 1)(bytes(signed))
    signed[data.draw(st.integers(0, len(signed) - 1))] ^= data.draw(st.integers(1, 255))
    assert not message_checker(key, 1)(bytes(signed))
    assert not message_checker(key, 1)(message)


@given(st.binary(max_size=64), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_messages_trailer_is_the_hmac_that_is_documented(
    key: bytes, call: int, number: int, message: bytes
) -> None:
    signed = b"frame\0" + call.to_bytes(8) + number.to_bytes(8) + message
    trailer = b"\xfa\x7f\x10" + hmac.digest(key, signed, "sha256")[:16]
    assert SigningKey(bytes(16), key).sign(call, number, message) == message + trailer


def test_messages_of_a_call_cannot_be_left_out_repeated_or_moved() -> None:
    key = SigningKey(bytes(16), b"k" * 32)
    sign = message_signer(key, 3)
    first, second, third = sign(b"a"), sign(b"b"), sign(b"c")
    for wrong in ((first, third), (first, first), (second,), (first, second, second)):
        check = message_checker(key, 3)
        assert [check(message) for message in wrong][-1] is False
    check = message_checker(key, 3)
    assert all(check(message) for message in (first, second, third))
    assert not message_checker(key, 4)(first), "of another call"


def test_after_a_wrong_message_no_other_is_accepted() -> None:
    key = SigningKey(bytes(16), b"k" * 32)
    check, sign = message_checker(key, 0), message_signer(key, 0)
    sign(b"lost")
    assert not check(b"forged")
    assert not check(sign(b"right"))


@pytest.mark.parametrize("secret", [b"canary-secret-2", b"", SECRET[:-1]])
def test_a_wrong_secret_is_refused(server: Server, secret: bytes) -> None:
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED") as raised:
        server.log_in(secret)
    assert SECRET.decode() not in str(raised.value)


def test_an_unknown_user_is_refused_in_the_words_of_a_wrong_secret(server: Server) -> None:
    with pytest.raises(TroveError) as known:
        server.log_in(b"wrong-secret")
    with pytest.raises(TroveError) as unknown:
        server.log_in(SECRET, "mallory")
    assert str(known.value) == str(unknown.value)
    first = client_first("mallory", NONCE)
    again = server.sessions.begin(first, 0), server.sessions.begin(first, 0)
    assert again[0].split(",")[1] == again[1].split(",")[1], "its salt is always the same"


def test_a_handshake_cannot_be_sent_again(server: Server) -> None:
    first = client_first("alice", NONCE)
    handshake = ClientHandshake(first, server.sessions.begin(first, 0), SECRET)
    server.sessions.finish(handshake.message, 0)
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.sessions.finish(handshake.message, 0)


def test_a_handshake_has_a_time(server: Server) -> None:
    first = client_first("alice", NONCE)
    handshake = ClientHandshake(first, server.sessions.begin(first, 0), SECRET)
    with pytest.raises(TroveError, match="took too long"):
        server.sessions.finish(handshake.message, HANDSHAKE_TIME_MAX_MS + 1)


def test_a_server_without_the_secret_is_found_out(server: Server) -> None:
    first = client_first("alice", NONCE)
    handshake = ClientHandshake(first, server.sessions.begin(first, 0), SECRET)
    with pytest.raises(ScramError, match="does not know the secret"):
        handshake.finish("v=" + base64.b64encode(bytes(32)).decode())


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "r=other-nonce-0123456789abcdef,s=AAAAAAAAAAA=,i=4096",
        f"r={NONCE},s=AAAAAAAAAAA=,i=4096",
        f"r={NONCE}0123456789abcdef,s=AAAAAAAAAAA=,i=1",
        f"r={NONCE}0123456789abcdef,s=AAAAAAAAAAA=,i=9999999",
        f"r={NONCE}0123456789abcdef,s=!!!!!!!!,i=4096",
        f"m=ext,r={NONCE}0123456789abcdef,s=AAAAAAAAAAA=,i=4096",
    ],
)
def test_a_client_takes_no_odd_answer(answer: str) -> None:
    with pytest.raises(ScramError):
        ClientHandshake(client_first("alice", NONCE), answer, SECRET)


@given(st.text(max_size=200))
def test_random_messages_of_a_handshake_are_refused(text: str) -> None:
    table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)
    sessions = Sessions(table, bytes(32), bytes)
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        sessions.finish(text, 0)
    with suppress(TroveError):
        sessions.begin(text, 0)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_changed_message_of_a_handshake_is_refused(place: int, change: int) -> None:
    salt = b"0123456789abcdef"
    verifier = _VERIFIERS.setdefault(salt, Verifier.of(SECRET, salt))
    first = client_first("alice", NONCE)
    server = ServerHandshake(ClientFirst.parse(first), salt, "server-nonce-0123456789")
    message = bytearray(_client_of(first, server.message).message.encode())
    message[place % len(message)] ^= change
    with pytest.raises(ScramError):
        server.check(message.decode("latin-1"), (verifier,))


_VERIFIERS: dict[bytes, Verifier] = {}
_CLIENTS: dict[str, ClientHandshake] = {}


def _client_of(first: str, answer: str) -> ClientHandshake:
    """Made once: it takes a millisecond."""
    return _CLIENTS.setdefault(answer, ClientHandshake(first, answer, SECRET))


def test_a_session_ends_with_its_secret(server: Server) -> None:
    key, _ = server.log_in()
    server.change(changes.rotate_secret(server.table.state, "alice", b"second-secret", EpochMs(0)))
    newer, _ = server.log_in(b"second-secret")
    server.sessions.call(key.credential(0, PATH), PATH, 0)
    server.change(changes.drop_old_secret(server.table.state, "alice"))
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.sessions.call(key.credential(1, PATH), PATH, 0)
    server.sessions.call(newer.credential(0, PATH), PATH, 0)


def test_a_session_ends_with_its_user(server: Server) -> None:
    key, session = server.log_in()
    server.change(changes.set_enabled(server.table.state, "alice", enabled=False))
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.sessions.call(key.credential(0, PATH), PATH, 0)
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.log_in()
    server.change(changes.delete_user(server.table.state, "alice"))
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED"):
        server.sessions.user_of(session)


def test_a_session_has_a_time(server: Server) -> None:
    key, _ = server.log_in()
    server.sessions.call(key.credential(0, PATH), PATH, SESSION_TIME_MAX_MS)
    with pytest.raises(TroveError, match="has expired"):
        server.sessions.call(key.credential(1, PATH), PATH, SESSION_TIME_MAX_MS + 1)
    server.sessions.expire(SESSION_TIME_MAX_MS + 1)
    assert len(server.sessions) == 0


@pytest.mark.parametrize("years", [-10, 10])
def test_a_clock_that_is_off_by_years_makes_no_session_last(server: Server, years: int) -> None:
    off_ms = years * 365 * 86_400_000
    key, _ = server.log_in(now_ms=EpochMs(0))
    server.sessions.call(key.credential(0, PATH), PATH, -1_000)
    with pytest.raises(TroveError, match="expired: begin another one"):
        server.sessions.call(key.credential(1, PATH), PATH, off_ms)
    newer, _ = server.log_in(now_ms=EpochMs(off_ms))
    server.sessions.call(newer.credential(0, PATH), PATH, off_ms)
    server.sessions.expire(off_ms)
    assert len(server.sessions) == 1
    first = client_first("alice", NONCE)
    proof = ClientHandshake(first, server.sessions.begin(first, 0), SECRET).message
    with pytest.raises(TroveError, match="begin again"):
        server.sessions.finish(proof, off_ms)


def test_handshakes_and_sessions_are_bounded(server: Server) -> None:
    for number in range(HANDSHAKES_MAX + 10):
        server.sessions.begin(client_first("alice", f"{number:020}"), 0)
    assert len(server.sessions._handshakes) == HANDSHAKES_MAX
    user = server.table.state.users["alice"]
    for _ in range(SESSIONS_OF_USER_MAX + 5):
        server.sessions._make(user, user.secrets[0], bytes(32), 0)
    assert len(server.sessions) == SESSIONS_OF_USER_MAX
    assert list(server.sessions._of_user) == ["alice"]
    server.sessions.expire(SESSION_TIME_MAX_MS + 1)
    assert not server.sessions._of_user


def test_a_flood_of_handshakes_from_one_address_leaves_the_others(server: Server) -> None:
    first = client_first("alice", NONCE)
    answer = server.sessions.begin(first, 0, "10.0.0.1")
    for number in range(HANDSHAKES_MAX + 100):
        server.sessions.begin(client_first("alice", f"{number:020}"), 0, f"10.0.0.{2 + number % 3}")
    proof = ClientHandshake(first, answer, SECRET).message
    assert server.sessions.finish(proof, 0)[1].access_key == "alice"
    assert sum(server.sessions._begun_by.values()) == len(server.sessions._handshakes)


@given(st.lists(st.integers(0, 3 * CALLS_AHEAD_MAX), max_size=60))
def test_a_number_is_taken_once(numbers: list[int]) -> None:
    window, taken, highest = CallWindow(), set[int](), -1
    for number in numbers:
        free = number not in taken and number > highest - CALLS_AHEAD_MAX
        assert window.take(number) == free
        if free:
            taken.add(number)
            highest = max(highest, number)


def test_nothing_shows_a_key(server: Server) -> None:
    key, session = server.log_in()
    assert key.credential(0, PATH)[24:].hex() not in repr(key)
    assert "verifier" not in repr(session.secret)
    assert SECRET.decode() not in repr(session)
