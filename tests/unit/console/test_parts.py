"""The parts that need no page: views of a body, histories, charts, addresses."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.console_cluster import COUNTERS, Clocks, FakeCluster
from trovemq import ClusterState, TroveError, errors
from trovemq_console.app import make_app
from trovemq_console.bodies import HEX_BYTES, body_view, indented, preview, visible
from trovemq_console.charts import ceiling, chart, coordinates, spark
from trovemq_console.cluster import Cluster
from trovemq_console.command import greeting, main
from trovemq_console.finding import moment_of
from trovemq_console.rendering import (
    SEARCH_TEMPLATES,
    duration_text,
    link,
    make_environment,
    moment_text,
    number_text,
    rate_text,
    size_text,
)
from trovemq_console.sampling import POINTS_MAX, WATCHED_SECONDS, History, Sampler
from trovemq_console.settings import ConsoleSettings, is_loopback

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


# --- bodies -----------------------------------------------------------------------------------------
@given(VALUES, st.sampled_from([None, 0, 3]), st.booleans())
def test_indented_json_says_the_same(value: Any, indent: int | None, ascii_only: bool) -> None:
    assert json.loads(indented(json.dumps(value, indent=indent, ensure_ascii=ascii_only))) == value


def test_the_json_view_keeps_what_a_parser_would_change() -> None:
    body = rb'{"a":1.10,"a":1e2,"b":"\u00fc","c":[],"d":{ }}'
    assert body_view(body).text == '{\n  "a": 1.10,\n  "a": 1e2,\n  "b": "\\u00fc",\n  "c": [],\n  "d": {}\n}'


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b"{" * 1_000, b'["' + b"a" * 600_000, b"[1" * 200 + b"]" * 199]
)
def test_what_is_not_json_is_shown_as_text(body: bytes) -> None:
    assert (body_view(body).name, body_view(body, "json").name) == ("text", "text")
    assert body_view(body, "json").note


def test_deep_json_does_not_grow_without_end() -> None:
    deep = b"[" * 300 + b"1," * 200_000 + b"1" + b"]" * 300
    assert len(body_view(deep, "json").text) <= 128 << 10


@given(st.binary(max_size=9_000), st.integers(-5, 10_000))
def test_the_hex_view_has_every_byte(body: bytes, begin: int) -> None:
    view = body_view(body, "hex", begin)
    shown = bytes.fromhex("".join(row[10:60] for row in view.text.splitlines()))
    assert shown == body[view.begin : view.end]
    assert view.end == len(body) or view.end - view.begin == HEX_BYTES


def test_the_last_bytes_of_a_part_of_the_hex_view_were_in_none() -> None:
    body = bytes(number % 251 for number in range(2 * HEX_BYTES + 5))
    shown = b""
    for begin in (0, HEX_BYTES, 2 * HEX_BYTES):
        view = body_view(body, "hex", begin)
        shown += bytes.fromhex("".join(row[10:60] for row in view.text.splitlines()))
        assert (view.begin, view.end) == (begin, min(begin + HEX_BYTES, len(body)))
        assert view.after == (begin + HEX_BYTES if begin < 2 * HEX_BYTES else None)
    assert shown == body


@given(st.text())
def test_shown_text_has_no_control_characters(text: str) -> None:
    assert all(c in "\n\t" or c.isprintable() for c in visible(text))


@given(st.binary(max_size=600))
def test_a_preview_is_one_short_printable_line(body: bytes) -> None:
    assert preview(body).isprintable()
    assert len(preview(body)) <= 100


def test_a_preview_of_words_and_of_bytes() -> None:
    assert (preview(b"two\n lines"), preview(b"\xff\x00")) == ("two lines", "ff 00")
    assert preview(b"\xe2\x80\xaefdp") == "\\u202efdp"


# --- histories --------------------------------------------------------------------------------------
def test_a_rate_is_over_the_last_minute_and_never_negative() -> None:
    clocks = Clocks()
    history = History(clocks.monotonic)
    assert history.rate(("a",)) is None
    for value in (0, 100, 200):
        history.add(("a",), value)
        clocks.passed += 10
    assert history.rate(("a",)) == 10
    assert [rate for _, rate in history.rates(("a",))] == [10, 10]
    clocks.passed += 120
    assert history.rate(("a",)) is None


def test_a_sample_of_a_page_beside_the_samplers_drew_a_spike() -> None:
    clocks = Clocks()
    history = History(clocks.monotonic)
    for seconds, value in ((0, 0), (5, 50), (5.1, 55), (10, 100), (15, 150), (15.2, 150)):
        clocks.passed = seconds
        history.add(("a",), value)
    assert [rate for _, rate in history.rates(("a",))] == [10, 10, 10]


def test_a_history_forgets_its_oldest_values() -> None:
    history = History(Clocks().monotonic)
    for value in range(POINTS_MAX + 5):
        history.add(("a",), value)
    assert len(history.points(("a",))) == POINTS_MAX


def test_watched_values_are_sampled_for_half_an_hour() -> None:
    clocks, looks = Clocks(), []

    async def connect() -> Any:
        return FakeCluster(topics={"orders": 1})

    async def look() -> None:
        looks.append(clocks.passed)
        raise TroveError(errors.TOPIC_NOT_FOUND, "gone")

    async def turns() -> None:
        sampler = Sampler(Cluster(connect, clocks.monotonic), History(clocks.monotonic))
        sampler.watch(("topic", "orders"), look)
        await sampler.sample()
        clocks.passed = WATCHED_SECONDS + 1
        await sampler.sample()
        assert sampler.history.points(("broker", "broker-a", "messages_in"))[0][1] == COUNTERS["messages_in"]

    asyncio.run(turns())
    assert looks == [0]


def test_a_sample_without_a_cluster_is_no_failure() -> None:
    async def connect() -> Any:
        raise TroveError(errors.BROKER_UNREACHABLE, "nobody")

    clocks = Clocks()
    asyncio.run(Sampler(Cluster(connect, clocks.monotonic), History(clocks.monotonic)).sample())


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e12)), min_size=2).map(sorted))
def test_a_chart_stays_in_its_picture(points: list[tuple[float, float]]) -> None:
    top = ceiling(max(value for _, value in points))
    assert all(0 <= x <= 120 and 0 <= y <= 28 for x, y in coordinates(points, 120, 28, top))
    for picture in (spark(points, "rate", rate_text), chart(points, "rate", rate_text)):
        assert "nan" not in picture


@given(st.floats(1e-6, 1e15))
def test_an_axis_ends_at_a_round_value_that_is_not_far_above(value: float) -> None:
    top = ceiling(value)
    assert value * (1 - 1e-6) <= top <= value * 2.6
    assert f"{top:.0e}"[0] in "125"


def test_a_chart_has_axes_and_names_its_newest_value() -> None:
    drawn = chart([(0, 0), (30, 700), (90, 350)], "messages in a second", rate_text)
    texts = re.findall(r"<(?:span|figcaption)>([^<]*)<", drawn)
    assert texts == ["1,000/s", "500/s", "0", "1 min 30 s ago", "now", "350/s"]


@pytest.mark.parametrize("points", [[], [(5.0, 3.0)]])
def test_a_chart_begins_at_the_first_look(points: list[tuple[float, float]]) -> None:
    drawn = chart(points, "lag", number_text)
    assert "<span>0</span>" in drawn
    assert ("<figcaption>3<" in drawn) == bool(points)
    assert ('polyline points=""' in drawn) != bool(points)


def test_a_label_of_a_chart_is_escaped() -> None:
    assert "<b>" not in spark([(0, 1), (1, 2)], "<b>", number_text)
    assert "<b>" not in chart([(0, 1), (1, 2)], "<b>", number_text)


# --- small things -----------------------------------------------------------------------------------
def test_sizes_times_and_links() -> None:
    assert (size_text(None), size_text(512), size_text(1536), size_text(1 << 60)) == (
        "—",
        "512 B",
        "1.5 KiB",
        "1024.0 PiB",
    )
    assert (duration_text(350), duration_text(61_000), duration_text(90_061_000)) == (
        "350 ms",
        "1 min 1 s",
        "1 d 1 h",
    )
    assert (moment_text(0), moment_text(1_500), moment_text(1 << 62)) == (
        "—",
        "1970-01-01 00:00:01.500",
        str(1 << 62),
    )
    assert link("/topic", name="%DLQ%a b&c", at=None, cursor="") == "/topic?name=%25DLQ%25a+b%26c"


@pytest.mark.parametrize("text", ["42", "order-1", "20250101123", ""])
def test_a_number_is_rather_a_key_than_a_time(text: str) -> None:
    assert moment_of(text) is None
    moment = moment_of("1700000000000")
    assert moment is not None
    assert moment.at(0) == 1_700_000_000_000


# --- the command line -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments",
    [
        ["--listen", "0.0.0.0:8090"],
        ["--listen", "example.com:8090"],
        ["--listen", "8090"],
        ["--listen", "127.0.0.1:99999"],
        ["--tls-key", "key.pem"],
        ["--no-such-option"],
    ],
)
def test_wrong_usage_starts_nothing(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err


def test_a_certificate_or_a_port_that_cannot_be_used_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none.pem").write_text("this is no certificate")
    for name in ("missing.pem", "none.pem"):
        files = ["--tls-certificate", str(tmp_path / name), "--tls-key", str(tmp_path / name)]
        with pytest.raises(SystemExit) as stop:
            main(["--listen", "127.0.0.1:0", *files])
        assert (stop.value.code, "certificate or its key" in capsys.readouterr().err) == (2, True)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as stop:
        main(["--listen", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert stop.value.code == 6
    assert capsys.readouterr().err.endswith(": Address already in use\n")


def test_loopback_and_the_greeting() -> None:
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "localhost", "0.0.0.0", "::", "h")] == [
        True
    ] * 3 + [False] * 3
    settings = ConsoleSettings("trovemq://me:secret@b:1?tls=true", "::1", 8090, sign_in_token="T")
    assert (
        greeting(settings)
        == "console of trovemq://b:1?tls=true, read-only: http://[::1]:8090/sign-in?token=T\n"
    )
    assert "secret" not in repr(settings.command("stats"))


# --- the routes -------------------------------------------------------------------------------------
class SlowCluster(FakeCluster):
    """Answers for its routes when it may, and counts how often it was asked."""

    asked = 0
    may_answer: asyncio.Event

    async def cluster(self) -> ClusterState:
        self.asked += 1
        await self.may_answer.wait()
        return await super().cluster()


def connected(fake: SlowCluster) -> Cluster:
    async def connect() -> Any:
        return fake

    return Cluster(connect, Clocks().monotonic)


def test_two_requests_at_once_asked_for_all_routes_twice() -> None:
    async def run() -> None:
        fake = SlowCluster(topics={"orders": 1})
        fake.may_answer = asyncio.Event()
        cluster = connected(fake)
        first, second = asyncio.create_task(cluster.state()), asyncio.create_task(cluster.topics())
        await asyncio.sleep(0)
        fake.may_answer.set()
        await asyncio.gather(first, second)
        assert fake.asked == 1

    asyncio.run(run())


def test_requests_at_once_share_the_failure_of_their_call() -> None:
    """One after the other, each would wait for a cluster that does not answer."""

    async def run() -> None:
        class Away(SlowCluster):
            async def cluster(self) -> ClusterState:
                await super().cluster()
                raise TroveError(errors.BROKER_UNREACHABLE, "no broker answers")

        fake = Away(topics={"orders": 1})
        fake.may_answer = asyncio.Event()
        cluster = connected(fake)
        waiting = [asyncio.create_task(cluster.state()) for _ in range(3)]
        while not fake.asked:
            await asyncio.sleep(0)
        fake.may_answer.set()
        failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(failure) for failure in failures] == [TroveError] * 3
        assert fake.asked == 1

    asyncio.run(run())


def test_routes_that_were_asked_for_before_a_change_are_not_kept_after_it() -> None:
    async def run() -> None:
        fake = SlowCluster(topics={"orders": 1})
        fake.may_answer = asyncio.Event()
        cluster = connected(fake)
        before = asyncio.create_task(cluster.state())
        while not fake.asked:
            await asyncio.sleep(0)
        cluster.expire()
        fake.may_answer.set()
        await before
        await cluster.state()
        assert fake.asked == 2

    asyncio.run(run())


def test_the_first_search_waited_for_the_routes_and_for_its_templates() -> None:
    """A console has both before the first request."""

    async def run() -> None:
        fake = SlowCluster(topics={"orders": 1})
        fake.may_answer = asyncio.Event()
        fake.may_answer.set()

        async def connect() -> Any:
            return fake

        environment = make_environment()
        assert environment.cache is not None
        environment.cache.clear()
        app = make_app(ConsoleSettings("127.0.0.1:9"), connect)
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        answers: asyncio.Queue[Any] = asyncio.Queue()
        serving = asyncio.ensure_future(app({"type": "lifespan"}, events.get, answers.put))
        await events.put({"type": "lifespan.startup"})
        assert (await answers.get())["type"] == "lifespan.startup.complete"
        while not fake.asked or len(environment.cache) < len(SEARCH_TEMPLATES):
            await asyncio.sleep(0)
        await events.put({"type": "lifespan.shutdown"})
        await serving

    asyncio.run(asyncio.wait_for(run(), 60))
