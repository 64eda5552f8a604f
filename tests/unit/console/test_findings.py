"""Findings of doctor, links, rates and buttons on the pages."""

from __future__ import annotations

import asyncio
import re

from tests.support.console_cluster import FakeCluster, console
from tests.unit.console.test_pages import lag, links, tile
from trovemq.cli.doctor_evidence import Finding
from trovemq.models.group import GroupSettings


def test_the_overview_has_the_findings_of_doctor() -> None:
    found = [
        Finding("groups", "billing", "9 messages wait, and the group has no member", "start its consumers"),
        Finding("clocks", "broker-a", "its clock is 5.0 s fast", "run a time service", note=True),
    ]
    with console(FakeCluster(topics={"orders": 2}), found=found) as browser:
        assert "The checks of <code>trovemq doctor</code> are being made" in browser.get("/")
        page = browser.get("/")
    for one in found:
        assert f"{one.what} → " in re.sub("<[^>]*>", "", page)
        assert one.to_do in page
    assert "/group?name=billing" in links(page)
    assert [">fine<" in page, ">note<" in page, ">problem<" in page] == [False, True, True]
    assert page.count("its clock is 5.0 s fast") == 1


def test_numbers_of_the_overview_lead_to_their_pages() -> None:
    with console(FakeCluster(topics={"orders": 2})) as browser:
        page = browser.get("/")
    for label, target in (("Topics", "/topics"), ("Waiting", "/groups"), ("Stored", "/storage")):
        assert re.search(rf'>{label}</div><div class="value"><a href="{target}">', page), label


def test_a_number_and_its_chart_disagreed_without_a_reason() -> None:
    """The number is the average of a minute, and the chart ends with the last seconds."""
    cluster = FakeCluster(topics={"orders": 2})
    cluster.groups.groups["broker-a", "billing"] = GroupSettings()
    cluster.groups.lags = [lag(0, 5)]
    with console(cluster) as browser:
        pages = (
            browser.get("/") + browser.get("/group", name="billing") + browser.get("/topic", name="orders")
        )
    said = re.findall(
        r'>([^<]*)</div><div class="value">[^\n]*<div class="note">[^<]*over the last minute<', pages
    )
    assert said == ["Messages in", "Messages out", "Consumed", "Arriving", "In"]


def test_a_group_shows_its_rates_and_its_dead_letters() -> None:
    cluster = FakeCluster(topics={"orders": 2, "%DLQ%billing": 1})
    cluster.groups.groups["broker-a", "billing"] = GroupSettings()
    for number in range(3):
        asyncio.run(cluster.send("%DLQ%billing", b"dead", keys=[f"k{number}"]))
    cluster.groups.lags = [lag(0, 5, committed=100, max_offset=105)]
    with console(cluster) as browser:
        page = browser.get("/group", name="billing")
        assert [tile(page, label) for label in ("Consumed", "Arriving", "Dead letters")] == ["—", "—", "3"]
        browser.clocks.passed += 10
        cluster.groups.lags = [lag(0, 5, committed=300, max_offset=405)]
        page = browser.get("/group", name="billing")
    assert [tile(page, label) for label in ("Consumed", "Arriving")] == ["20/s", "30/s"]
    assert "/dead-letters?group=billing" in links(page)


def test_buttons_that_destroy_look_so() -> None:
    cluster = FakeCluster(topics={"orders": 2})
    cluster.groups.groups["broker-a", "billing"] = GroupSettings()
    cluster.groups.lags = [lag(0, 5)]
    with console(cluster, allow_changes=True) as browser:
        pages = browser.get("/topic", name="orders") + browser.get("/group", name="billing")
    risky = re.findall(r'<button class="button risky">([^<]*) …<', pages)
    assert risky == ["Delete the topic", "Delete the group", "Preview the reset"]
