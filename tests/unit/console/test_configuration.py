"""The page of the cluster's configuration."""

from __future__ import annotations

import re

import pytest

from tests.support.configs import status
from tests.support.console_cluster import FakeCluster, console
from trovemq import ConfigMember, ConfigName


def test_the_copies_of_the_brokers_and_what_to_mend() -> None:
    cluster = FakeCluster()
    names = tuple(ConfigName("topic", f"old-{number:02}") for number in range(60))
    cluster.config.statuses = [
        status(
            "a",
            "owner",
            9,
            members=(ConfigMember("a", 9, True), ConfigMember("b", 7, True), ConfigMember("z", 1, False)),
        ),
        status("b", "current", 7, unlisted=names),
    ]
    with console(cluster) as browser:
        page = browser.get("/configuration")
        assert "<strong>a</strong> owns it, in generation 1.0123" in page
        rows = re.findall(r"<tr><td>(\w+)</td><td><span[^>]*>(\w+)<.*?</tr>", page)
        assert rows[:2] == [("a", "owner"), ("b", "current")]
        assert "1 of 2" in page, "followers"
        assert "No answer from z" in page
        assert "trovemq topic adopt old-00" in page
        assert "old-50" not in page
        assert "old-50" in browser.get("/configuration", **{"from": 50})


def test_brokers_that_share_no_configuration_are_told_how() -> None:
    with console() as browser:
        page = browser.get("/configuration")
    assert "share no configuration" in page
    assert "To mend" not in page


@pytest.mark.parametrize(("state", "level"), [("current", "good"), ("stored", "warn"), ("joining", "bad")])
def test_the_state_of_a_copy_has_a_level(state: str, level: str) -> None:
    cluster = FakeCluster()
    cluster.config.statuses = [status("a", "owner"), status("b", state)]
    with console(cluster) as browser:
        assert f'<span class="badge {level}">{state}</span>' in browser.get("/configuration")
