"""Quotas without a network: what is slowed, what is refused, and that nothing is given twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_broker.security import quotas as module
from trovemq_broker.security.quotas import WAIT_MAX_MS, Quota, Quotas, Use, check_subject
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs


def made(**quotas: Quota) -> Quotas:
    book = Quotas()
    book.set({name.replace("_", ":", 1).replace("any", "*"): quota for name, quota in quotas.items()})
    return book


def uses_of(
    book: Quotas,
    user: str = "alice",
    *,
    is_super: bool = False,
    source: str = "",
    client: str = "",
    now_ms: EpochMs = EpochMs(0),
) -> tuple[Use, ...]:
    return book.uses(user, is_super=is_super, source=source, client_id=client, now_ms=now_ms)


def symbol(attempt: Any) -> str:
    try:
        attempt()
    except TroveError as error:
        return error.symbol
    return ""


def test_without_quotas_nothing_is_counted() -> None:
    assert uses_of(Quotas(), source="10.0.0.1", client="c") == ()


def test_a_call_falls_under_its_user_its_address_and_its_client() -> None:
    each = Quota(requests_per_s=1)
    book = made(User_alice=each, User_any=each, Address_any=each, Client_c=each)
    found = uses_of(book, source="10.0.0.1", client="c")
    assert [use.subject for use in found] == ["User:alice", "Address:*", "Client:c"]
    assert [use.subject for use in uses_of(book, "bob", client="d")] == ["User:*"]
    others = uses_of(book, "admin", is_super=True, source="10.0.0.1", client="c")
    assert others == (), "nobody locks the super users out"
    own = uses_of(book, "alice", is_super=True, source="10.0.0.1", client="c")
    assert [use.subject for use in own] == ["User:alice"]


def test_each_user_address_and_client_of_a_quota_for_all_has_its_own() -> None:
    each = Quota(requests_per_s=1)
    book = made(User_any=each, Address_any=each, Client_any=each)
    first = uses_of(book, "alice", source="10.0.0.1", client="c")
    assert uses_of(book, "alice", source="10.0.0.1", client="c") == first
    second = uses_of(book, "bob", source="10.0.0.2", client="c")
    assert not set(first) & set(second), "a client's id is its user's"


def test_who_takes_more_is_slowed_first_and_refused_after() -> None:
    book = made(User_alice=Quota(requests_per_s=10))
    uses = uses_of(book)
    waits = [book.take_request(uses, 0, EpochMs(0)) for _ in range(21)]
    assert waits == [0.0] * 11 + [100.0 * number for number in range(1, 11)]
    assert symbol(lambda: book.take_request(uses, 0, EpochMs(0))) == "LIMIT_EXCEEDED"
    assert symbol(lambda: book.take_request(uses, 0, EpochMs(0))) == "LIMIT_EXCEEDED", (
        "nothing was charged before"
    )
    assert book.take_request(uses, 0, EpochMs(100)) == 1_000.0
    assert (book.slowed["User:alice"], book.refused["User:alice"]) == (11, 2)


def test_a_message_larger_than_a_seconds_bytes_passes_and_is_paid_for() -> None:
    book = made(User_alice=Quota(bytes_in_per_s=1_000))
    uses = uses_of(book)
    assert book.take_request(uses, 5_000, EpochMs(0)) == 0.0
    assert symbol(lambda: book.take_request(uses, 1, EpochMs(2_999))) == "LIMIT_EXCEEDED"
    assert book.take_request(uses, 1, EpochMs(3_000)) == pytest.approx(1_000)
    assert book.take_request(uses, 1, EpochMs(10_000)) == 0.0


def test_replies_are_paid_for_by_the_next_requests() -> None:
    book = made(Address_any=Quota(bytes_out_per_s=1_000))
    uses = uses_of(book, source="10.0.0.1")
    assert book.take_reply(uses, 1_500, EpochMs(0)) == pytest.approx(500)
    assert book.take_request(uses, 0, EpochMs(100)) == pytest.approx(400)
    other = uses_of(book, source="10.0.0.2")
    assert book.take_request(other, 0, EpochMs(100)) == 0.0


def test_open_calls_are_counted_and_refused_above_the_limit() -> None:
    book = made(User_alice=Quota(calls_max=2), Address_any=Quota(calls_max=5))
    uses = uses_of(book, source="10.0.0.1")
    book.open_call(uses, "c1")
    book.open_call(uses, "c1")
    assert symbol(lambda: book.open_call(uses, "c1")) == "LIMIT_EXCEEDED"
    assert book.open_calls() == {"User:alice": 2, "Address:*": 2}
    book.close_call(uses, "c1")
    book.open_call(uses, "c1")


def test_only_queries_wait_for_the_time_of_queries() -> None:
    book = made(User_alice=Quota(query_ms_per_s=100))
    uses = uses_of(book)
    assert book.take_request(uses, 0, EpochMs(0), is_query=True) == 0.0
    book.take_query(uses, 150)
    assert book.take_request(uses, 0, EpochMs(0)) == 0.0, "a send"
    assert book.take_request(uses, 0, EpochMs(0), is_query=True) == pytest.approx(500)
    book.take_query(uses, 100)
    assert symbol(lambda: book.take_request(uses, 0, EpochMs(0), is_query=True)) == "LIMIT_EXCEEDED"
    assert book.take_request(uses_of(book, "bob"), 0, EpochMs(0), is_query=True) == 0.0
    assert book.take_request(uses, 0, EpochMs(3_000), is_query=True) == 0.0


def test_queries_that_began_together_all_passed_the_quota() -> None:
    """Each counts, while it runs, for as long as those before it took."""
    book = made(User_alice=Quota(query_ms_per_s=100))
    (use,) = uses = uses_of(book)
    for _ in range(10):
        assert book.take_request(uses, 0, EpochMs(0), is_query=True) == 0.0
        use.begin_query()
    assert book.take_request(uses, 0, EpochMs(0), is_query=True) == 0.0, "no debt yet"
    use.begin_query()
    assert book.take_request(uses, 0, EpochMs(0), is_query=True) == pytest.approx(100)
    for _ in range(11):
        use.end_query(0)
    assert book.take_request(uses, 0, EpochMs(0), is_query=True) == 0.0


def test_topics_and_groups_are_counted_for_the_user_who_made_them() -> None:
    book = made(User_alice=Quota(topics_max=2), User_any=Quota(groups_max=1))
    for user, noun, count, refused in (
        ("alice", "topic", 1, False),
        ("alice", "topic", 2, True),
        ("alice", "group", 9, False),
        ("bob", "topic", 9, False),
        ("bob", "group", 1, True),
    ):
        outcome = symbol(lambda: book.check_entries(user, noun, count, is_super=False))  # noqa: B023
        assert outcome == ("LIMIT_EXCEEDED" if refused else ""), (user, noun, count)
    book.check_entries("admin", "group", 9, is_super=True)
    assert book.refused == {"User:alice": 1, "User:*": 1}


def test_an_unknown_caller_falls_under_its_address_alone() -> None:
    book = made(User_any=Quota(requests_per_s=1), Address_any=Quota(requests_per_s=1))
    (use,) = book.uses_of_address("10.0.0.1", EpochMs(0))
    assert use in uses_of(book, source="10.0.0.1")
    assert book.uses_of_address("", EpochMs(0)) == ()


def test_an_address_has_so_many_connections_and_no_more() -> None:
    book = made(Address_any=Quota(connections_max=2))
    assert [book.connection_opened(source) for source in ("a", "a", "a", "b", "", "", "")] == [
        *(True, True, False),
        *(True, True, True, True),
    ]
    book.connection_closed("a")
    assert book.connection_opened("a")
    assert book.refused == {"Address:*": 1}
    book.set({})
    assert book.connection_opened("a"), "no quota any more"


def test_a_users_client_ids_leave_space_for_others() -> None:
    """Each id is in debt for long, so none of them can be forgotten."""
    book = made(Client_any=Quota(bytes_in_per_s=1), Address_any=Quota(requests_per_s=1))
    for number in range(module.CLIENTS_OF_USER_MAX):
        book.take_request(uses_of(book, "mallory", client=f"c{number}"), 1_000_000, EpochMs(0))
    for _ in range(2):
        assert symbol(lambda: uses_of(book, "mallory", client="one more")) == "LIMIT_EXCEEDED"
    assert len(uses_of(book, "alice", client="c", source="10.0.0.1")) == 2
    assert symbol(lambda: uses_of(book, "mallory", client="c7")) == "", "those that are counted"
    book.set({})
    assert not book._clients_of


def test_addresses_of_one_ipv6_network_are_counted_together() -> None:
    book = made(Address_any=Quota(connections_max=1, requests_per_s=1))
    book.set({**book._quotas, "Address:2001:db8::9": Quota(connections_max=1)})
    one, two, other, own = "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "2001:db8::9"
    assert uses_of(book, source=one) == uses_of(book, source=two)
    assert uses_of(book, source=one) != uses_of(book, source=other)
    assert [use.subject for use in uses_of(book, source=own)] == ["Address:2001:db8::9"]
    assert [book.connection_opened(source) for source in (one, two, other, own, own)] == [
        *(True, False, True),
        *(True, False),
    ]
    for source in (one, other, own):
        book.connection_closed(source)
    assert not book._connections


def test_connections_with_open_calls_are_counted() -> None:
    book = made(User_alice=Quota(connections_max=2))
    uses = uses_of(book)
    for connection in ("c1", "c2", "c2"):
        book.open_call(uses, connection)
    assert symbol(lambda: book.open_call(uses, "c3")) == "LIMIT_EXCEEDED"
    book.open_call(uses, "c1")
    for _ in range(2):
        book.close_call(uses, "c1")
    book.open_call(uses, "c3")
    assert uses[0].connections == {"c2": 2, "c3": 1}


def test_a_change_of_a_quota_forgets_no_open_call_and_no_debt() -> None:
    book = made(User_alice=Quota(requests_per_s=1, calls_max=1))
    uses = uses_of(book)
    book.open_call(uses, "c1")
    book.take_request(uses, 0, EpochMs(0))
    book.take_request(uses, 0, EpochMs(0))
    book.set({"User:*": Quota(requests_per_s=2, calls_max=1)})
    assert uses_of(book) == uses
    assert symbol(lambda: book.open_call(uses, "c1")) == "LIMIT_EXCEEDED"
    assert book.take_request(uses, 0, EpochMs(0)) == 500.0
    book.set({})
    book.close_call(uses, "c1")
    assert uses_of(book) == ()


def test_more_addresses_than_are_counted_push_out_idle_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USES_MAX", 3)
    book = made(Address_any=Quota(requests_per_s=1))
    busy = [uses_of(book, source=f"10.0.0.{number}") for number in range(3)]
    for uses in busy:
        book.take_request(uses, 0, EpochMs(0))
    assert symbol(lambda: uses_of(book, source="10.0.0.9")) == "LIMIT_EXCEEDED"
    assert uses_of(book, source="10.0.0.9", now_ms=EpochMs(1_000)) != ()
    assert len(book._uses) == 1


amounts = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3_000)), max_size=60)


@given(st.integers(1, 1_000), amounts)
def test_no_more_is_taken_than_the_rate_a_burst_and_one_message(
    rate: int, asked: Sequence[tuple[int, int]]
) -> None:
    """Over any time: without its last message it is at most the rate's worth, a second's, and what may be
    waited for."""
    book = made(User_alice=Quota(bytes_in_per_s=rate))
    uses, now_ms, taken, last = uses_of(book), 0, 0, 0
    for pause_ms, size in asked:
        now_ms += pause_ms
        try:
            wait_ms = book.take_request(uses, size, EpochMs(now_ms))
        except TroveError:
            continue
        assert 0 <= wait_ms <= WAIT_MAX_MS
        taken, last = taken + size, size
        assert taken - last <= rate * (now_ms / 1_000 + 1 + WAIT_MAX_MS / 1_000) + 1e-6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user:alice", "User:alice"),
        ("User:*", "User:*"),
        ("Address:::ffff:10.0.0.1", "Address:10.0.0.1"),
        ("address:FD00::1", "Address:fd00::1"),
        ("Client:a@b:1", "Client:a@b:1"),
    ],
)
def test_subjects_have_one_form(text: str, expected: str) -> None:
    assert check_subject(text) == expected


@pytest.mark.parametrize(
    "text", ["", "alice", "User:", "Topic:a", "Address:nowhere", "Client:a b", "User:a b", "Client:ä"]
)
def test_a_subject_that_is_none_is_refused(text: str) -> None:
    assert symbol(lambda: check_subject(text)) in ("REQUEST_ILLEGAL", "USER_ILLEGAL")


@pytest.mark.parametrize("value", [-1, 1 << 51])
def test_a_limit_that_is_none_is_refused(value: int) -> None:
    assert symbol(lambda: Quota(requests_per_s=value)) == "REQUEST_ILLEGAL"
