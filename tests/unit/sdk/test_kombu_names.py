"""Queues of kombu as topics: the names can be read back, are legal, and say which queues share a topic."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq._kombu.names import TOPIC_NAME_MAX, is_shared_name, queue_of, topic_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=10)


@given(NAMES, st.sampled_from(["", "shop-"]))
def test_a_name_is_legal_and_read_back(queue: str, prefix: str) -> None:
    topic = topic_of(queue, prefix)
    assert re.fullmatch(r"[%|a-zA-Z0-9_-]+", topic)
    assert queue_of(topic, prefix) == queue


@given(NAMES, NAMES)
def test_different_queues_have_different_topics(one: str, two: str) -> None:
    assert (topic_of(one) == topic_of(two)) == (one == two)


def test_plain_names_stay() -> None:
    assert topic_of("celery") == "celery"
    assert topic_of("mail_high-1") == "mail_high-1"
    assert topic_of("mail.high~1") == "mail%2Ehigh%7E1"


@pytest.mark.parametrize("queue", ["", "a" * (TOPIC_NAME_MAX + 1), "." * 43])
def test_a_name_that_no_topic_can_have(queue: str) -> None:
    with pytest.raises(TroveError, match="a shorter name") as raised:
        topic_of(queue)
    assert raised.value.spec is errors.TOPIC_ILLEGAL


def test_queues_of_one_process_are_known_by_name() -> None:
    for queue in (
        "one@host.celery.pidbox",
        f"{uuid4()}.reply.celery.pidbox",
        f"celeryev.{uuid4()}",
        f"{uuid4()}",
    ):
        assert is_shared_name(queue), queue
    for queue in ("celery", "mail.high", uuid4().hex, "pidbox.kept"):
        assert not is_shared_name(queue), queue
