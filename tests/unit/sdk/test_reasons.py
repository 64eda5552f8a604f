"""The reason that the SDK gives for a message that is not consumed."""

from __future__ import annotations

import pytest

from trovemq._consume.reasons import reason_of_failure, reason_of_program
from trovemq.options import ClientOptions
from trovemq_proto.records.dead_letter_reason import TEXT_SIZE_MAX


class DeclinedError(Exception):
    """Its name has a module."""


class BrokenError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_the_type_and_the_text() -> None:
    assert reason_of_failure(ValueError("no\ncard"), ClientOptions()) == ("ValueError", "no card", False)
    assert reason_of_failure(DeclinedError(), ClientOptions()).error == f"{__name__}.DeclinedError"


def test_without_texts_the_type_stays() -> None:
    options = ClientOptions(failure_texts=False)
    assert reason_of_failure(ValueError("card 12"), options) == ("ValueError", "", False)
    assert reason_of_failure(ValueError("card 12"), ClientOptions(), with_text=False).text == ""
    assert reason_of_program("no such street", options).text == "no such street", "the program's words stay"


def test_the_hook_sees_each_text_before_it_is_cut() -> None:
    seen = []

    def redact(text: str) -> str:
        seen.append(len(text))
        return text.replace("secret", "…")

    options = ClientOptions(redact=redact)
    assert reason_of_failure(ValueError("secret " * 200), options).text.startswith("… … …")
    assert reason_of_program("a secret", options).text == "a …"
    assert seen == [1400, 8]
    assert len(reason_of_failure(ValueError("x" * 9_000), options).text.encode()) == TEXT_SIZE_MAX


def test_the_password_of_a_database_stood_in_a_dead_letter() -> None:
    failure = ConnectionError("cannot reach postgresql://shop:hunter2@db:5432/shop, nor redis://:s3@cache")
    kept = reason_of_failure(failure, ClientOptions()).text
    assert kept == "cannot reach postgresql://shop:***@db:5432/shop, nor redis://:***@cache"


@pytest.mark.parametrize("hook", [lambda _: 1 / 0, lambda _: None, lambda text: text.encode()])
def test_a_hook_that_fails_lets_no_text_through(hook: object, caplog: pytest.LogCaptureFixture) -> None:
    options = ClientOptions(redact=hook)  # type: ignore[arg-type]
    assert reason_of_failure(ValueError("secret"), options) == ("ValueError", "", False)
    assert "redact" in caplog.text
    assert "secret" not in caplog.records[0].getMessage()


def test_an_exception_whose_text_fails_has_a_reason() -> None:
    assert "ValueError" in reason_of_failure(BrokenError(), ClientOptions()).text
