"""A broker says that messages went before their time: no cursor continues there, and not all is complete."""

from __future__ import annotations

import pytest

from trovemq._lookup.cursor import BrokerProgress, decode_cursor, encode_cursor
from trovemq._lookup.merge import all_messages
from trovemq.answers import QueryAnswer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@pytest.mark.asyncio
async def test_asking_for_all_messages_restarted_for_ever_if_some_had_gone_early() -> None:
    asked: list[str | None] = []

    async def ask(cursor: str | None) -> QueryAnswer:
        asked.append(cursor)
        assert len(asked) < 3
        return QueryAnswer((), False, "next" if len(asked) == 1 else None, 0, 0, (), ("broker-a: removed",))

    with pytest.raises(TroveError, match="broker-a: removed") as refused:
        await anext(all_messages(ask))
    assert refused.value.spec is errors.MESSAGES_REMOVED_EARLY
    assert asked == [None, "next"]


def test_a_cursor_keeps_that_one_broker_lacks_some() -> None:
    places = {"a": BrokerProgress("", 5, 10, True, True), "b": BrokerProgress("x", None, 10)}
    assert decode_cursor(encode_cursor(7, places), 7) == places
