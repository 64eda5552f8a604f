"""Forms of browsers and of other clients: read as the standard library reads them, at a bounded cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_loop
from tests.support.console_cluster import console
from tests.support.fake_loop import fake_time
from trovemq import TroveError
from trovemq_console.app import SIGN_IN_SIZE_MAX
from trovemq_console.pages.forms import FIELDS_MAX, FORM_SIZE_MAX, Form, read_form

PART_SIZE = 64 << 10
TEXTS = st.text("ab=+&;%/~. \r\n\t\0é€", max_size=8)
ESCAPED = st.one_of(
    st.sampled_from(list("ab=+&;~./ \t")), st.integers(0, 255).map(lambda byte: f"%{byte:02X}")
)


class Sent:
    """A request with this body; `read_size` is as much of it as was read."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.read_size = 0

    async def stream(self) -> AsyncIterator[bytes]:
        while self.read_size < len(self._body):
            part = self._body[self.read_size :][:PART_SIZE]
            self.read_size += len(part)
            yield part


def read(body: bytes, **limits: int) -> Form:
    request: Any = Sent(body)
    return fake_loop.run(read_form(request, **limits))


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4))
def test_a_browsers_fields_are_read(fields: list[tuple[str, str]]) -> None:
    assert read(urlencode(fields).encode())._values == Form(fields)._values


@given(st.lists(ESCAPED, max_size=20))
def test_other_forms_are_read_as_the_standard_library_does(parts: list[str]) -> None:
    body = "".join(parts)
    assert read(body.encode())._values == Form(parse_qsl(body, keep_blank_values=True))._values


@pytest.mark.parametrize("body", [b"a=%", b"a=%4", b"a=%4g", b"%zz=1", "a=é".encode(), b"&" * FIELDS_MAX])
def test_bytes_that_are_no_form_are_refused(body: bytes) -> None:
    with pytest.raises(TroveError, match="not a form"):
        read(body)


def test_a_form_of_12_mib_of_escapes_took_a_gibibyte() -> None:
    body = b"body=" + b"%41" * (4 << 20)
    tracemalloc.start()
    try:
        form = read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert form.text("body") == "A" * (4 << 20)
    assert peak < 8 * len(body)


@fake_time
async def test_of_a_form_that_is_too_large_the_rest_is_not_read() -> None:
    request: Any = Sent(bytes(2 * FORM_SIZE_MAX))
    with pytest.raises(TroveError, match="larger than"):
        await read_form(request, SIGN_IN_SIZE_MAX)
    assert request.read_size == PART_SIZE


def test_anybody_could_send_11_mib_instead_of_a_token() -> None:
    with console(sign_in_token="secret") as browser:
        answer = browser.http.post("/sign-in", content=b"sign-in-token=" + b"%41" * 3_000)
        assert answer.status_code == 400
        assert answer.text == f"the form is larger than {SIGN_IN_SIZE_MAX} bytes\n"
