"""The pages of a cluster, and of one that does not answer."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.support.console_cluster import COUNTERS, Browser, FakeCluster, console, elements, rule, user
from tests.support.fake_groups import dead_letter
from tests.unit.cli.conftest import FIRST_TIMESTAMP
from trovemq import TroveError, errors
from trovemq.models.cluster import LostBroker, TopicHold
from trovemq.models.group import GroupSettings, QueueLag
from trovemq.models.track import ConsumptionStatus, MessageTrack, TrackEvent
from trovemq_console.pages import topics

TOPIC_COUNT = 10_000


def cluster_of_messages(*bodies: bytes, topic: str = "orders") -> FakeCluster:
    cluster = FakeCluster(topics={topic: 2})
    for number, body in enumerate(bodies):
        asyncio.run(cluster.send(topic, body, keys=[f"order-{number}"], tag="paid"))
    return cluster


def first_id(cluster: FakeCluster) -> str:
    return cluster._all()[-1].offset_msg_id


def links(page: str) -> list[str]:
    return [
        str(attributes["href"]) for tag, attributes in elements(page) if tag == "a" and "href" in attributes
    ]


# --- the overview -----------------------------------------------------------------------------------
def test_rates_come_from_two_looks_at_the_counters() -> None:
    cluster = FakeCluster(topics={"orders": 2}, counters={"broker-a": {**COUNTERS, "messages_in": 100}})
    with console(cluster) as browser:
        assert tile(browser.get("/"), "Messages in") == "—"
        cluster.counters["broker-a"]["messages_in"] = 220
        browser.clocks.passed += 10
        assert tile(browser.get("/"), "Messages in") == "12/s"


def test_a_counter_that_began_again_gives_no_rate() -> None:
    cluster = FakeCluster(topics={"orders": 2}, counters={"broker-a": {**COUNTERS, "messages_in": 100}})
    with console(cluster) as browser:
        browser.get("/")
        cluster.counters["broker-a"]["messages_in"] = 3
        browser.clocks.passed += 10
        assert tile(browser.get("/"), "Messages in") == "—"


def tile(page: str, label: str) -> str:
    match = re.search(rf'>{label}</div><div class="value">(?:<a [^>]*>)?([^<]*)<', page)
    assert match is not None
    return match[1]


def test_a_killed_broker_was_not_shown_at_all() -> None:
    with console(FakeCluster(lost=(LostBroker("broker-b", "c", "10.0.0.2:8081", 90_000, 3, 2),))) as browser:
        page = browser.get("/")
    assert "broker-b at 10.0.0.2:8081 left the routes 90 s ago and was not stopped" in page
    assert "2 of its 3 topics are on no other broker" in page


def test_a_broker_with_much_more_than_another_one_is_shown() -> None:
    counters = {name: {**COUNTERS, "log_end_offset": size} for name, size in (("a", 4 << 30), ("b", 1 << 30))}
    with console(FakeCluster(brokers=("a", "b"), counters=counters)) as browser:
        assert "a has 4.0 GiB of stored messages; b has 1.0 GiB" in browser.get("/")
    counters["b"] = counters["a"]
    with console(FakeCluster(brokers=("a", "b"), counters=counters)) as browser:
        assert "of stored messages; " not in browser.get("/")


def test_a_search_was_called_complete_without_the_lost_broker() -> None:
    cluster = cluster_of_messages(b"x")
    asyncio.run(cluster.send("orders", b"y", keys=["order-0"], tag="paid"))
    with console(cluster) as browser:
        assert ">complete<" in browser.get("/search", q="order-0")
    cluster.lost = (LostBroker("broker-b", "c", "10.0.0.2:8081", 90_000, 3, 2),)
    with console(cluster) as browser:
        page = browser.get("/search", q="order-0")
        assert "broker-b is lost: its messages were" in browser.http.get("/search", params={"q": "none"}).text
    assert "broker-b is lost: its messages were not searched" in page
    assert ">complete<" not in page


@pytest.mark.parametrize("state", ["draining", "drained"])
def test_a_drained_broker_says_that_it_takes_no_new_messages(state: str) -> None:
    with console(FakeCluster(**{state: {"broker-a"}})) as browser:  # type: ignore[arg-type]
        page = browser.get("/")
    assert f"it is {state}: new messages go to other brokers" in page
    assert ">fine<" not in page


def test_topics_of_brokers_that_are_gone_were_called_none_yet() -> None:
    with console(FakeCluster(brokers=())) as browser:
        assert "No broker is in the routes, so no topic is known" in browser.get("/topics")
    with console(FakeCluster()) as browser:
        assert "There is no topic yet" in browser.get("/topics")


def test_a_brokers_topics_are_counted_without_system_topics_as_the_sum_is() -> None:
    cluster = FakeCluster(topics={"orders": 2, "%DLQ%billing": 1, "rmq_sys_wheel_timer": 1})
    with console(cluster) as browser:
        page = browser.get("/")
    assert tile(page, "Topics") == "1"
    counted = (
        r'<td class="num"><a href="/topics">(\d+)</a></td>\s*<td class="num"><a [^<]*</a></td>\s*<td>sync'
    )
    assert re.findall(counted, page) == ["1"]


@pytest.mark.parametrize(
    ("counter", "value", "words"),
    [
        ("damaged_ranges", 2, "2 damaged places"),
        ("lagging_projections", 1, "1 indexes have not reached"),
        ("retention_failures", 3, "3 removals of old segments failed"),
    ],
)
def test_a_broker_in_trouble_says_why(counter: str, value: int, words: str) -> None:
    cluster = FakeCluster(topics={"orders": 2}, counters={"broker-a": {**COUNTERS, counter: value}})
    with console(cluster) as browser:
        page = browser.get("/")
    assert words in page
    assert ">fine<" not in page


def test_a_broker_that_does_not_answer_hides_no_other() -> None:
    cluster = FakeCluster(topics={"orders": 2}, brokers=("broker-a", "broker-b"), down={"broker-b"})
    with console(cluster) as browser:
        page = browser.get("/")
        assert "did not answer: BROKER_UNREACHABLE" in page
        assert ">fine<" in page
        cluster.down.clear()
        assert "did not answer" not in browser.get("/")


def test_a_cluster_that_is_not_there_is_an_error_page_and_asked_again() -> None:
    cluster = FakeCluster(topics={"orders": 2})
    answers: list[Any] = [TroveError(errors.BROKER_UNREACHABLE, "127.0.0.1:9: refused"), cluster]

    async def connect() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, TroveError):
            raise answer
        return answer

    with console(cluster, connect) as browser:
        reply = browser.http.get("/topics")
        assert (reply.status_code, "127.0.0.1:9: refused" in reply.text) == (503, True)
        assert "load the page again" not in reply.text, "the page reloads without a click, and says so"
        assert errors.BROKER_UNREACHABLE.meaning not in reply.text, "its message says it"
        assert "orders" in browser.get("/topics")


def test_a_user_without_rights_sees_which_ones_are_missing() -> None:
    cluster = FakeCluster(topics={"orders": 2})
    denied = TroveError(errors.ACCESS_DENIED, "alice may not do that")

    async def refuse(*_: object, **__: object) -> Any:
        raise denied

    cluster.statistics = refuse  # type: ignore[method-assign]
    cluster.search = refuse  # type: ignore[method-assign]
    with console(cluster) as browser:
        overview = browser.get("/")
        assert "its counters are not shown: ACCESS_DENIED" in overview
        assert "did not answer" not in overview
        for path in ("/delayed", "/transactions", "/topic?name=orders"):
            assert "alice may not do that" in browser.get(path), path
        assert browser.status("/topic/new", name="orders") == 403


# --- topics -----------------------------------------------------------------------------------------
def test_of_ten_thousand_topics_those_on_the_page_are_asked_for() -> None:
    cluster = FakeCluster(topics={f"topic-{number:05}": 1 for number in range(TOPIC_COUNT)})
    with console(cluster) as browser:
        page = browser.get("/topics")
        assert sum(name == "describe_topic" for name, _ in cluster.calls) == 50
        assert "topic-00049" in page
        assert "topic-00050" not in page
        assert "from=50" in page
        assert "topic-00050" in browser.get("/topics", **{"from": 50})
        filtered = browser.get("/topics", filter="09999")
        assert "1 of 10,000 topics" in filtered
        assert "topic-09999" in filtered


def test_the_brokers_own_topics_are_listed_where_they_are_asked_for() -> None:
    cluster = FakeCluster(topics={"orders": 1, "%DLQ%billing": 1, "rmq_sys_wheel_timer": 1})
    with console(cluster) as browser:
        assert "1 of 1 topics" in browser.get("/topics")
        assert "3 of 3 topics" in browser.get("/topics", system="on")


@pytest.mark.parametrize("first", ["20000", "99999999999999999999", "-1", "x"])
def test_an_illegal_page_of_a_list(first: str) -> None:
    with console() as browser:
        assert browser.status("/topics", **{"from": first}) in (200, 400)


def test_a_topic_shows_depth_options_hold_and_groups() -> None:
    cluster = cluster_of_messages(b"one", b"two")
    cluster.topic_options["orders"] = {"retention": "until_acknowledged"}
    cluster.holds["orders"] = TopicHold(4_096, "billing", 0, 0, FIRST_TIMESTAMP)
    cluster.groups.groups["broker-a", "billing"] = GroupSettings()
    with console(cluster) as browser:
        page = browser.get("/topic", name="orders")
    assert "until_acknowledged" in page
    assert "4.0 KiB" in page
    assert "/group?name=billing" in links(page)
    assert "order-1" in page
    stored = sum(message.store_size for message in cluster._all())
    assert tile(page, "Size") == f"{stored} B"


def test_a_size_that_takes_long_leaves_the_rest_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "SIZES_SECONDS_MAX", 0.01)
    cluster = cluster_of_messages(b"one")
    cluster.counts_sizes_for_ever = True
    with console(cluster) as browser:
        page = browser.get("/topic", name="orders")
    assert tile(page, "Size") == "—"
    assert "order-0" in page


def test_messages_are_browsed_by_time_and_by_offset() -> None:
    cluster = cluster_of_messages(*(b"body-%d" % number for number in range(60)))
    with console(cluster) as browser:
        newest = browser.get("/topic", name="orders")
        assert "order-59" in newest
        assert "order-10" not in newest
        (older,) = [link for link in links(newest) if "cursor=" in link]
        assert "order-10" in browser.get(older.partition("#")[0])
        by_offset = browser.get("/topic", name="orders", queue=0, offset=30)
        assert "order-30" in by_offset
        assert "order-29" not in by_offset
        assert any("offset=55" in link for link in links(by_offset))
        by_time = browser.get("/topic", name="orders", at=FIRST_TIMESTAMP + 58)
        assert "order-58" in by_time
        assert "order-57" not in by_time


@pytest.mark.parametrize("asked", [{"offset": "x"}, {"offset": "5", "queue": "99"}, {"at": "soon"}])
def test_a_place_that_is_none_leaves_the_rest_of_the_page(asked: dict[str, str]) -> None:
    with console(cluster_of_messages(b"one")) as browser:
        page = browser.get("/topic", name="orders", **asked)
    assert 'class="notice warn"' in page
    assert "Settings" in page


def test_the_live_tail_gets_what_is_stored_from_a_time_on() -> None:
    with console(cluster_of_messages(b"one", b"two", b"three")) as browser:
        rows = browser.get("/topic/new", name="orders", since=FIRST_TIMESTAMP + 1)
    assert [attributes["data-at"] for tag, attributes in elements(rows) if tag == "tr"] == [
        str(FIRST_TIMESTAMP + 2),
        str(FIRST_TIMESTAMP + 1),
    ]


# --- a message --------------------------------------------------------------------------------------
def test_a_message_shows_its_track_and_why_a_group_has_not_consumed_it() -> None:
    cluster = cluster_of_messages(b'{"order": 1}')
    place: dict[str, Any] = {"topic": "orders", "queue_id": 0, "queue_offset": 0}
    cluster.tracks[first_id(cluster)] = MessageTrack(
        copies=(),
        events=(
            TrackEvent("broker-a", 1, 1_000, "stored", "", "", 0, 0, 1, detail="at a place", **place),
            TrackEvent("broker-a", 1, 3_500, "delivered", "billing", "c1", 1, 0, 1, detail="", **place),
        ),
        statuses=(
            ConsumptionStatus(
                "broker-a", 1, "billing", "in-flight", False, 9, 1, "c1", 0, False, None, 0, 1, 1, 1, "*",
                detail="until its lease ends", **place,
            ),
        ),
        complete=True,
    )  # fmt: skip
    with console(cluster) as browser:
        page = browser.get("/message", id=first_id(cluster))
    for words in ("at a place", "+2 s", "delivered", "in-flight", "until its lease ends", "1 of 1"):
        assert words in page
    assert "{\n  &#34;order&#34;: 1\n}" in page
    assert f"trovemq get {first_id(cluster)} --server 127.0.0.1:9" in page


def test_a_track_that_cannot_be_read_leaves_the_message() -> None:
    cluster = cluster_of_messages(b"one")

    async def track(*_: object) -> MessageTrack:
        raise TroveError(errors.INDEX_DISABLED, "no trees here")

    cluster.track = track  # type: ignore[method-assign,assignment]
    with console(cluster) as browser:
        page = browser.get("/message", id=first_id(cluster))
    assert "The track could not be read" in page
    assert "order-0" in page


@pytest.mark.parametrize(
    "identifier", ["", "0", "x" * 5_000, "%00", "../..", "\ud800".encode("utf-8", "surrogatepass")]
)
def test_an_id_that_is_none_is_an_answer(identifier: str) -> None:
    with console() as browser:
        assert browser.status("/message", id=identifier) in (400, 404)


def test_a_body_of_four_mebibytes_is_shown_in_parts() -> None:
    body = bytes(range(256)) * (4 << 12)
    cluster = cluster_of_messages(body, b"[" + b"1," * (1 << 21) + b"1]")
    with console(cluster) as browser:
        page = browser.get("/message", id=first_id(cluster))
        assert "00000ff0" in page
        assert "at=4096" in page
        assert len(page) < 64 << 10
        last = browser.get("/message", id=first_id(cluster), view="hex", at=len(body) - 16)
        assert "003ffff0" in last
        second = cluster._all()[0].offset_msg_id
        text = browser.get("/message", id=second)
        assert "larger than 512 KiB" in browser.get("/message", id=second, view="json")
        assert len(text) < 256 << 10
        assert len(browser.http.get("/message/body", params={"id": second}).content) == 4_194_307


# --- groups -----------------------------------------------------------------------------------------
def lag(queue_id: int, messages: int, **more: Any) -> QueueLag:
    values = {
        "min_offset": 0,
        "max_offset": 100,
        "committed": 0,
        "next_offset": 10,
        "in_flight": 2,
        "lag_ms": 61_000,
    }
    return QueueLag(
        "orders", queue_id, **{**values, **more}, lag=messages, estimated=False, broker="broker-a"
    )


def test_a_group_shows_its_lag_over_time() -> None:
    cluster = FakeCluster(topics={"orders": 2})
    cluster.groups.groups["broker-a", "billing"] = GroupSettings()
    cluster.groups.lags = [lag(0, 5), lag(1, 7)]
    with console(cluster) as browser:
        assert browser.get("/group", name="billing").count("<polyline") == 2, "an axis needs no second value"
        browser.clocks.passed += 5
        cluster.groups.lags = [lag(0, 1), lag(1, 9)]
        page = browser.get("/group", name="billing")
        assert page.count("<polyline") == 4
        assert "1 min 1 s" in page
        listed = browser.get("/groups")
        assert ">10<" in listed


def test_a_group_that_is_none_is_an_error_page() -> None:
    with console() as browser:
        reply = browser.http.get("/group", params={"name": "nobody"})
    assert (reply.status_code, "GROUP_NOT_FOUND" in reply.text) == (404, True)


# --- dead letters, waiting messages, storage, access --------------------------------------------------
def test_dead_letters_are_listed_by_group() -> None:
    cluster = FakeCluster(topics={"orders": 1, "%DLQ%billing": 1})
    cluster.groups.letters = [dead_letter("broker-a", offset, {"RETRY_TOPIC": "orders"}) for offset in (7, 8)]
    with console(cluster, allow_changes=True) as browser:
        assert "/dead-letters?group=billing" in links(browser.get("/dead-letters"))
        page = browser.get("/dead-letters", group="billing")
    assert page.count('name="letter"') == 2
    assert page.count(">yes<") == 1, "offset 8 was sent again"


def test_a_broker_that_is_away_hid_the_dead_letters_of_the_others() -> None:
    cluster = FakeCluster(topics={"orders": 1, "%DLQ%billing": 1})
    cluster.groups.letters = [dead_letter("broker-a", 7, {"RETRY_TOPIC": "orders"})]
    cluster.groups.letters_missing = "broker-b"
    with console(cluster, allow_changes=True) as browser:
        page = browser.get("/dead-letters", group="billing")
    assert page.count('name="letter"') == 1
    assert "No answer from broker-b" in page


def waiting(cluster: FakeCluster, topic: str, **properties: str) -> str:
    cluster.topics[topic] = 1
    return asyncio.run(cluster.send(topic, b"later", keys=["k"], properties=properties)).offset_msg_id


def test_delayed_messages_that_were_delivered_or_recalled_are_left_out() -> None:
    cluster = FakeCluster(topics={"orders": 1})
    due = {"REAL_TOPIC": "orders", "TIMER_OUT_MS": str(FIRST_TIMESTAMP)}
    still = waiting(cluster, "rmq_sys_wheel_timer", **due)
    recall = waiting(cluster, "rmq_sys_wheel_timer", **due, TIMER_DEL_UNIQKEY="U")
    with console(cluster) as browser:
        page = browser.get("/delayed")
    assert any(still in link for link in links(page))
    assert not any(recall in link for link in links(page))


def test_half_messages_whose_transaction_ended_are_left_out() -> None:
    cluster = FakeCluster(topics={"orders": 1})
    open_one = waiting(cluster, "RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="orders", PGROUP="payers")
    ended = waiting(cluster, "RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC="orders", PGROUP="payers")
    event = TrackEvent("broker-a", 1, 5, "rolled-back", "", "", 0, 0, 1, "orders", 0, 0, "")
    cluster.tracks[ended] = MessageTrack((), (event,), (), True)
    with console(cluster) as browser:
        page = browser.get("/transactions")
    assert "payers" in page
    assert any(open_one in link for link in links(page))
    assert not any(ended in link for link in links(page))


def test_storage_names_the_group_that_holds_the_disk() -> None:
    cluster = FakeCluster(topics={"orders": 1, "logs": 1})
    cluster.topic_options["orders"] = {"retention": "until_acknowledged"}
    cluster.holds["orders"] = TopicHold(1 << 20, "billing", 0, 17, 0)
    with console(cluster) as browser:
        page = browser.get("/storage")
    assert "1.0 MiB" in page
    assert "/group?name=billing" in links(page)
    assert "name=logs" not in page


def test_storage_lists_all_topics_once_a_minute_and_says_so() -> None:
    """At 10,000 topics each list takes 40 ms of a broker, and the page refreshes itself every 10 s."""
    cluster = FakeCluster(topics={"orders": 1})
    cluster.topic_options["orders"] = {"retention": "until_acknowledged"}
    cluster.holds["orders"] = TopicHold(1 << 20, "billing", 0, 17, 0)
    with console(cluster) as browser:
        assert "As of 0 s ago; asked again after 60 s" in browser.get("/storage")
        cluster.holds["orders"] = TopicHold(2 << 20, "billing", 0, 17, 0)
        browser.clocks.passed += 59
        page = browser.get("/storage")
        assert "As of 59 s ago" in page
        assert "1.0 MiB" in page
        browser.clocks.passed += 2
        page = browser.get("/storage")
    assert "As of 0 s ago" in page
    assert "2.0 MiB" in page


def test_storage_shows_at_once_what_the_console_changed() -> None:
    cluster = FakeCluster(topics={"orders": 1})
    with console(cluster, allow_changes=True) as browser:
        assert "No topic is kept until it is acknowledged" in browser.get("/storage")
        cluster.topic_options["orders"] = {"retention": "until_acknowledged"}
        fields = {"topic": "logs", "token": browser.form_token(), "confirmed": "yes"}
        assert browser.post("/acts/create-topic", fields)[0] == 200
        assert "/topic?name=orders" in links(browser.get("/storage"))


def test_storage_says_how_long_messages_are_kept_to_whom_may_know_it() -> None:
    cluster = FakeCluster()
    with console(cluster) as browser:
        page = browser.get("/storage")
        assert "messages for 3 d" in page
        assert "if 90 %, new messages are refused" in page
        assert "however young" not in page
        cluster.settings.values |= {"clean_forcibly_enable": "true"}
        assert "if 85 %, the oldest ones, however young" in browser.get("/storage")
        cluster.settings.refusal = TroveError(errors.ACCESS_DENIED, "alice may not")
        page = browser.get("/storage")
    assert "Keeps" not in page
    assert "Segments" in page


def test_users_and_rules_or_the_reason_why_none_are_shown() -> None:
    cluster = FakeCluster(topics={"orders": 1})
    cluster.users.rows, cluster.rules.rows = [user("alice")], [rule("alice")]
    with console(cluster) as browser:
        assert "Topic:orders" in browser.get("/access")
        cluster.rules.missing = ("broker-b",)
        assert "No answer from broker-b: this page is not complete" in browser.get("/access")
        cluster.users.refusal = TroveError(errors.ACCESS_DENIED, "alice may not list users")
        page = browser.get("/access")
    assert "alice may not list users" in page
    assert "Topic:orders" not in page


# --- the search box ---------------------------------------------------------------------------------
def found(browser: Browser, text: str, **more: str) -> str:
    reply = browser.http.get("/search", params={"q": text, **more})
    return reply.headers.get("location") or reply.text


def test_one_message_is_opened_at_once_by_id_place_or_key() -> None:
    cluster = cluster_of_messages(b"one", b"two")
    last = cluster._all()[0]
    with console(cluster) as browser:
        for text in (
            last.offset_msg_id,
            str(last.message_id),
            "orders/0/1",
            "orders 0 1",
            "order-1",
            " order-1 ",
        ):
            assert found(browser, text) == f"/message?id={last.offset_msg_id}", text


def test_a_beginning_a_time_and_a_name_give_lists() -> None:
    cluster = cluster_of_messages(b"one", b"two")
    cluster.groups.groups["broker-a", "ordering"] = GroupSettings()
    with console(cluster) as browser:
        for text in ("order-*", "order-"):
            page = found(browser, text)
            assert ("order-0" in page, "order-1" in page) == (True, True)
        page = found(browser, str(FIRST_TIMESTAMP + 1))
        assert ("order-0" in page, "order-1" in page) == (False, True)
        page = found(browser, "order")
        assert {"/topic?name=orders", "/group?name=ordering"} <= set(links(page))


@pytest.mark.parametrize("text", ["nothing", "orders/0/99", "*", "2038-01-01", "x" * 5_000])
def test_a_text_that_names_nothing_says_what_was_tried(text: str) -> None:
    with console(FakeCluster(topics={"t": 1})) as browser:
        reply = browser.http.get("/search", params={"q": text})
    assert (reply.status_code, "Nothing found" in reply.text) == (404, True)


def test_a_search_over_many_topics_says_that_it_was_cut() -> None:
    cluster = FakeCluster(topics={f"t{number:03}": 1 for number in range(100)})
    with console(cluster) as browser:
        assert "64 of 100 topics were searched" in found(browser, "key-1")
        assert "topics were searched" not in found(browser, "key-1", topic="t099")


def test_blanks_in_the_search_box_are_as_good_as_nothing() -> None:
    with console() as browser:
        page = browser.get("/search", q="  ")
    assert "Give any of these" in page
    assert "Nothing found" not in page


# --- no answer ----------------------------------------------------------------------------------------
def test_a_page_without_an_answer_is_asked_for_again() -> None:
    async def unreachable() -> None:
        raise TroveError(errors.BROKER_UNREACHABLE, "connection refused")

    with console(connect=unreachable) as browser:
        for path in ("/", "/topics", "/topic?name=orders", "/storage"):
            reply = browser.http.get(path)
            assert (reply.status_code, 'id="again"' in reply.text) == (503, True), path
    with console() as browser:  # this does not pass
        reply = browser.http.get("/topic", params={"name": "none"})
        assert (reply.status_code, 'id="again"' in reply.text) == (404, False)


def test_an_act_without_an_answer_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*_: object, **__: object) -> None:
        raise TroveError(errors.SERVICE_NOT_AVAILABLE, "drained")

    cluster = FakeCluster(topics={"orders": 1})
    monkeypatch.setattr(cluster, "send", refused)
    with console(cluster, allow_changes=True) as browser:
        fields = {"topic": "orders", "body": "x", "token": browser.form_token(), "confirmed": "yes"}
        status, page = browser.post("/acts/send", fields)
    assert (status, "SERVICE_NOT_AVAILABLE" in page, 'id="again"' in page) == (503, True, False)


def test_a_message_without_an_identifier_says_what_is_missing() -> None:
    with console() as browser:
        reply = browser.http.get("/message")
    assert (reply.status_code, "the address lacks id=" in reply.text) == (400, True)
