"""A kombu message as a record: key, name, time, priority, and its expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.kombu_messages import received
from trovemq._kombu.envelope import arguments_of, body_of, due_at, is_expired, payload_of, priority_of

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def payload(headers: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {"body": "{}", "headers": headers or {}, "properties": properties}


def test_a_payload_is_read_back() -> None:
    sent = payload({"task": "größe"}, delivery_info={"exchange": ""})
    assert payload_of(received(body_of(sent))) == sent


def test_a_second_delivery_says_so() -> None:
    read = payload_of(received(body_of(payload()), attempt=2))
    assert read["redelivered"]
    assert read["properties"]["delivery_info"]["redelivered"]


@pytest.mark.parametrize(
    "body",
    [
        b"12 apples",
        b"[]",
        b"{}",
        b'{"properties": 1}',
        b"\xff",
        b"[" * 10_000,
        b'{"properties": {}}',
        b'{"properties": {}, "body": 17}',
        b'{"properties": {}, "body": "x", "headers": "x"}',
        b'{"properties": {}, "body": "", "headers": {"task": "add"}}',
        b'{"properties": {}, "body": "x", "content-encoding": 8}',
        b'{"properties": {"delivery_info": "x"}, "body": "x"}',
        b'{"properties": {"body_encoding": "rot13"}, "body": "x"}',
        b'{"properties": {"body_encoding": "base64"}, "body": "%%%"}',
    ],
    ids=lambda body: body[:60].decode(errors="replace"),
)
def test_another_record_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        payload_of(received(body))


def task(body: str, **headers: Any) -> bytes:
    sent = payload({"task": "add", "id": "t-1", **headers})
    return body_of({**sent, "content-type": "application/json", "content-encoding": "utf-8", "body": body})


@pytest.mark.parametrize(
    "record",
    [
        *map(
            task, ("5", "null", "true", '"text"', "{}", "[1, 2]", "[[], 5, {}]", "[5, {}, {}]", "[[], {}, 5]")
        ),
        task("[" * 10_000),
        task("not JSON"),
        task("[[], {}, {}]", id=None),
        task("[[], {}, {}]", timelimit=5),
        task("[[], {}, {}]", timelimit=[5]),
    ],
    ids=lambda record: record[9:60].decode(),
)
def test_a_body_that_is_no_task_ended_each_worker(record: bytes) -> None:
    """Celery unpacks the body where no error is expected: the worker ended, and the next one as well."""
    with pytest.raises(ValueError):
        payload_of(received(record))


@pytest.mark.parametrize(
    "record",
    [
        task('[[1], {"a": 2}, {"callbacks": null}]', timelimit=[None, 5]),
        task("[[1], {}, null]"),
        task('{"args": [1], "kwargs": {}}', id=None),
        task("eJw=", compression="application/x-gzip"),
    ],
    ids=lambda record: record[9:60].decode(),
)
def test_a_task_of_another_program_is_taken(record: bytes) -> None:
    assert payload_of(received(record))["headers"]["task"] == "add"


def test_the_id_is_the_key_and_the_name_a_property() -> None:
    arguments = arguments_of(payload({"task": "shop.mail", "id": "other"}, correlation_id="t-1"), NOW)
    assert arguments == {
        "keys": ["t-1"],
        "properties": {"task": "shop.mail"},
        "priority": 0,
        "deliver_at": None,
    }


@pytest.mark.parametrize("key", ["", "two words", "x" * 129, "a\nb", 7, None])
def test_an_id_that_is_no_key_is_left_out(key: object) -> None:
    assert arguments_of(payload(correlation_id=key), NOW)["keys"] is None


def test_the_time_is_that_of_the_header() -> None:
    later = NOW + timedelta(minutes=5)
    assert arguments_of(payload({"eta": later.isoformat()}), NOW)["deliver_at"] == later
    assert arguments_of(payload({"eta": NOW.isoformat()}), NOW)["deliver_at"] is None
    assert due_at({"eta": "2026-03-01T14:00:00+02:00"}) == NOW
    assert due_at({"eta": "2026-03-01T12:00:00"}) == NOW


@pytest.mark.parametrize("eta", [None, "soon", 5])
def test_a_time_that_is_none_is_left_to_celery(eta: object) -> None:
    assert due_at({"eta": eta}) is None


@pytest.mark.parametrize(
    ("value", "priority"), [(None, 0), (3, 3), (9, 9), (200, 9), (-1, 0), ("5", 5), ("x", 0)]
)
def test_a_priority_is_one_of_the_broker(value: object, priority: int) -> None:
    assert priority_of({"priority": value}) == priority


def test_a_message_expires_after_its_time() -> None:
    message = received(b"", born_timestamp=1_000)
    assert not is_expired(payload(expiration="500"), message, 1_499)
    assert is_expired(payload(expiration="500"), message, 1_500)
    assert not is_expired(payload(), message, 10**13)
    assert not is_expired(payload(expiration="soon"), message, 10**13)
