"""The signature of RocketMQ's clients: every form that they write, and nothing that was changed."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trials import SOAK
from trovemq_broker.security import changes
from trovemq_broker.security.rocketmq import REMEMBERED_MAX, SignatureChecker, parse_header
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.memory import MemoryFileSystem

SECRET = b"12345678"
DATE = "20261123T001500Z"


def _table() -> SecurityTable:
    table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)
    user = new_user("rocketmq", UserKind.NORMAL, SECRET, salt=bytes(16), now_ms=0)
    _apply(table, changes.add_user(table.state, user))
    return table


def _apply(table: SecurityTable, after: changes.SecurityState) -> None:
    change = table.begin(after)
    change.run()
    table.finish(change)


TABLE = _table()


def header(
    access_key: str = "rocketmq", secret: bytes = SECRET, date: str = DATE, *, upper: bool = False
) -> str:
    signature = hmac.new(secret, date.encode(), "sha1").hexdigest()
    return (
        f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature.upper() if upper else signature}"
    )


def refused(checker: SignatureChecker, text: str, date: str = DATE) -> str:
    with pytest.raises(TroveError, match="AUTHENTICATION_FAILED") as raised:
        checker.user_of(text, date)
    return str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(header(), id="Python, Rust"),
        pytest.param(header(upper=True), id="Java, Node.js"),
        pytest.param(header("rocketmq//RocketMQ"), id="Go"),
        pytest.param(header().replace(", ", ","), id="without spaces"),
    ],
)
def test_the_forms_that_clients_write(text: str) -> None:
    assert SignatureChecker(TABLE).user_of(text, DATE).access_key == "rocketmq"


def test_a_date_of_any_form_is_signed() -> None:
    date = "2026-11-23T00:15:00.123+02:00"
    assert SignatureChecker(TABLE).user_of(header(date=date), date).access_key == "rocketmq"


@pytest.mark.parametrize("text", [header("nobody"), header(""), header("", b""), header(secret=b"12345679")])
def test_an_unknown_user_and_a_wrong_secret_are_refused_in_the_same_words(text: str) -> None:
    assert "the access key or the signature is wrong" in refused(SignatureChecker(TABLE), text)


def test_the_refusal_names_the_credentials_or_the_date_that_are_missing() -> None:
    assert "give the client an access key" in refused(SignatureChecker(TABLE), "")
    for date in ("", "2" * 65):
        assert "x-mq-date-time is missing" in refused(SignatureChecker(TABLE), header(date=date), date)


@pytest.mark.parametrize(
    "text",
    [
        header().replace("SHA1", "SHA256"),
        header().replace("MQv2-HMAC-SHA1", "Basic"),
        header().replace("x-mq-date-time", "x-mq-date-time;host"),
        header() + ", Extra=1",
        header() + ", Credential=admin",
        header() + "0",
        header()[:-1],
        header() + "\n",
        " " + header(),
        header() * 40,
    ],
)
def test_a_header_of_another_form_was_called_a_wrong_secret(text: str) -> None:
    message = refused(SignatureChecker(TABLE), text)
    assert "is not of the form MQv2-HMAC-SHA1 Credential=ACCESS_KEY" in message
    assert "12345678" not in message


@pytest.mark.parametrize("date", ["", "20261123T001501Z", DATE + " ", DATE.lower()])
def test_a_signature_holds_for_its_date_alone(date: str) -> None:
    checker = SignatureChecker(TABLE)
    checker.user_of(header(), DATE)
    refused(checker, header(), date)


@settings(max_examples=500 if SOAK else 100)
@given(st.integers(0, len(header()) - 1), st.integers(1, 127))
def test_a_changed_header_is_refused(place: int, change: int) -> None:
    text = header()
    changed = text[:place] + chr(ord(text[place]) ^ change) + text[place + 1 :]
    same = parse_header(changed) == parse_header(text)  # the case of a hex digit, a space for a space
    if same:
        assert changed.lower() == text.lower() or changed.split() == text.split()
        return
    refused(SignatureChecker(TABLE), changed)


def test_a_remembered_header_ends_with_the_user() -> None:
    table = _table()
    checker = SignatureChecker(table)
    checker.user_of(header(), DATE)
    _apply(table, changes.set_enabled(table.state, "rocketmq", enabled=False))
    refused(checker, header())
    _apply(table, changes.set_enabled(table.state, "rocketmq", enabled=True))
    checker.user_of(header(), DATE)
    _apply(table, changes.rotate_secret(table.state, "rocketmq", b"another-secret", EpochMs(0)))
    checker.user_of(header(), DATE)
    checker.user_of(header(secret=b"another-secret"), DATE)
    _apply(table, changes.drop_old_secret(table.state, "rocketmq"))
    refused(checker, header())


def test_what_is_remembered_is_bounded() -> None:
    checker = SignatureChecker(TABLE)
    for number in range(REMEMBERED_MAX + 10):
        checker.user_of(header(date=str(number)), str(number))
        refused(checker, header(), f"x{number}")
    assert len(checker._right) <= REMEMBERED_MAX
