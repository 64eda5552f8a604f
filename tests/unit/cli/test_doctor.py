"""What `trovemq doctor` finds: nothing in a healthy cluster, and each fault by its name with what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.configs import SECOND, status
from trovemq.cli.doctor_checks import CHECKS, findings
from trovemq.cli.doctor_evidence import (
    BrokerEvidence,
    Evidence,
    Finding,
    GroupEvidence,
    Holdings,
    Load,
)
from trovemq.cli.figures import counted
from trovemq.models.broker import BrokerCondition, SettingDescription
from trovemq.models.cluster import BrokerInfo, LostBroker, TopicDescription
from trovemq.models.config import ConfigMember, ConfigName, ConfigStatus
from trovemq.models.group import GroupDescription, GroupSettings
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

VERSION = "1.2.3"
NOW = 1_700_000_000_000


def setting(name: str, value: str, started_with: str | None = None) -> SettingDescription:
    return SettingDescription(name, value, "default", False, started_with or value, "", "", "a")


def broker(name: str = "a", **changes: Any) -> BrokerEvidence:
    """A healthy one, but for the changes of its condition."""
    condition = BrokerCondition(
        broker=name,
        version=VERSION,
        now=NOW,
        drain="serving",
        reasons=(),
        warnings=(),
        disk_used_percent=40.0,
        disk_full=False,
        open_files=100,
        open_files_max=20_000,
        store_mode=0o700,
        authentication=False,
        plain_exposed="",
        http_exposed="",
    )
    settings = (setting("flush_mode", '"sync"'), setting("disk_warning_percent", "90"))
    return BrokerEvidence(
        BrokerInfo("c", name, "10.0.0.1:8081", version=VERSION),
        replace(condition, **changes),
        {one.name: one for one in settings},
        NOW - 5,
        NOW + 5,
    )


def with_settings(found: BrokerEvidence, *settings: SettingDescription) -> BrokerEvidence:
    return replace(found, settings={**found.settings, **{one.name: one for one in settings}})


def group(**changes: Any) -> GroupEvidence:
    return replace(GroupEvidence("billing", 2, 50, 40, 1_000), **changes)


def of(*brokers: BrokerEvidence, **more: Any) -> Evidence:
    return Evidence("ns:9876", VERSION, brokers or (broker(),), **more)


def found(evidence: Evidence) -> list[Finding]:
    for finding in (all_found := findings(evidence)):
        text = f"{finding.where} {finding.what} {finding.to_do}"
        assert finding.where, finding.check
        assert finding.what, finding.check
        assert finding.to_do, finding.check
        assert "\n" not in text
    return all_found


def test_nothing_is_found_in_a_healthy_cluster() -> None:
    assert found(of(broker("a"), broker("b"), groups=(group(),))) == []


def holding(name: str, *queues: int, settings: GroupSettings | None = None, **more: Any) -> BrokerEvidence:
    """A healthy broker with topics t0, t1, … of these queues, and with group billing if it has settings."""
    topics = {
        f"t{number}": TopicDescription(f"t{number}", count, "NORMAL", False, (), name)
        for number, count in enumerate(queues)
    }
    groups = {} if settings is None else {"billing": GroupDescription("billing", settings, 1, (), name)}
    return replace(broker(name), holdings=Holdings(topics, groups, Load(**more)))


EXPOSED = {"plain_exposed": "0.0.0.0:8081"}
FAILURE = TroveError(errors.BROKER_UNREACHABLE, "no answer")
DENIED = TroveError(errors.ACCESS_DENIED, "alice may not Get the cluster")
OLD = TroveError(errors.UNKNOWN_ERROR, "unknown method", grpc_status="UNIMPLEMENTED")

BROKEN: dict[str, tuple[Evidence, str, bool, str]] = {
    "no server": (Evidence("ns:9876", VERSION, failure=FAILURE), "reachable", False, "no answer"),
    "no broker": (Evidence("ns:9876", VERSION), "reachable", False, "there is no broker in the routes"),
    "a broker is gone": (
        of(replace(broker(), condition=None, failure=FAILURE)),
        "reachable",
        False,
        "no answer",
    ),
    "a broker was killed": (
        of(lost=(LostBroker("b", "c", "10.0.0.2:8081", 90_000, 3, 2),)),
        "lost",
        False,
        "left the routes 90 s ago without a regular stop; 2 of its 3 topics are on no other broker",
    ),
    "no right": (of(replace(broker(), condition=None, failure=DENIED)), "reachable", False, "may not Get"),
    "older": (of(replace(broker(), condition=None, failure=OLD)), "reachable", True, "the broker is older"),
    "not ready": (of(broker(reasons=("store: failed",))), "ready", False, "not ready: store: failed"),
    "warning": (of(broker(warnings=("damage: 3 places",))), "ready", False, "damage: 3 places"),
    "drained": (of(broker(drain="drained", warnings=("drain: drained",))), "drained", True, "it is drained"),
    "clock ahead": (of(broker(now=NOW + 60_000)), "clocks", False, "60.0 s fast"),
    "clock behind": (of(broker(now=NOW - 3_000)), "clocks", False, "3.0 s slow"),
    "disk near": (of(broker(disk_used_percent=85.5)), "disks", False, "refused from 90 % on"),
    "disk full": (of(broker(disk_used_percent=95.0, disk_full=True)), "disks", False, "are refused"),
    "files": (of(broker(open_files=17_000)), "open_files", False, "17000 of 20000"),
    "few files": (of(broker(open_files_max=1_024)), "open_files", True, "at most 1024"),
    "mode": (of(broker(store_mode=0o755)), "store_mode", False, "mode 755"),
    "exposed": (of(broker(**EXPOSED)), "exposure", False, "without authentication"),
    "no TLS": (of(broker(**EXPOSED, authentication=True)), "exposure", False, "without TLS"),
    "metrics": (of(broker(http_exposed="0.0.0.0:8080")), "exposure", True, "/metrics"),
    "version": (
        of(replace(broker(), info=BrokerInfo("c", "a", "h:1", version="1.1.0"))),
        "versions",
        True,
        "it is 1.1.0",
    ),
    "not kept": (
        of(with_settings(broker(), setting("log_level", '"debug"', '"info"'))),
        "kept_settings",
        True,
        "after a restart",
    ),
    "differs": (
        of(broker("a"), with_settings(broker("b"), setting("flush_mode", '"async"'))),
        "same_settings",
        False,
        'flush_mode differs: "sync" on a, "async" on b',
    ),
    "orphan": (of(groups=(group(members=0),)), "groups", False, "no member"),
    "a topic is lacked": (
        of(holding("a", 4, 8), holding("b", 4)),
        "topic_spread",
        True,
        "it lacks topic t1, which a has",
    ),
    "many topics are lacked": (
        of(holding("a", *[1] * 20), holding("b")),
        "topic_spread",
        True,
        "it lacks 20 topics that other brokers have: t0, t1, t10, ",
    ),
    "a topic differs": (
        of(holding("a", 4), holding("b", 8)),
        "topic_spread",
        False,
        "topic t0 differs: 4 queues, NORMAL on a; 8 queues, NORMAL on b",
    ),
    "a group is lacked": (
        of(holding("a", settings=GroupSettings()), holding("b")),
        "group_spread",
        True,
        "it lacks group billing, which a has",
    ),
    "a group differs": (
        of(holding("a", settings=GroupSettings()), holding("b", settings=GroupSettings(orderly=True))),
        "group_spread",
        False,
        "group billing has other settings",
    ),
    "rates differ": (
        of(holding("a", rate=300.0), holding("b", rate=100.0)),
        "balance",
        True,
        "300 messages a second; b has 100",
    ),
    "sizes differ": (
        of(holding("a", log_bytes=3 << 30), holding("b", log_bytes=1 << 20)),
        "balance",
        True,
        "3.0 GiB of stored messages; b has 1.0 MiB",
    ),
    "lag grows": (of(groups=(group(lag=60, oldest_ms=90_000),)), "groups", False, "the oldest for 90 s"),
}


SHARED = {"configs": (status("a", "owner"), status("b", "current"))}
OF_CONFIGURATION: dict[str, tuple[tuple[ConfigStatus, ...], bool, str]] = {
    "a broker has its own": ((status("a", "owner"), status("b", "alone")), False, "it has its own"),
    "two configurations": (
        (status("a", "owner"), status("b", "owner", owner="b", cluster="c2")),
        False,
        "of 2 clusters",
    ),
    "two owners": (
        (status("a", "owner"), status("b", "owner", owner="b", generation=SECOND)),
        False,
        "several brokers own",
    ),
    "the owner is away": ((status("b", "stored"), status("c", "stored")), False, "nothing of it can be"),
    "an older copy": ((status("a", "contradicted"), status("b", "current")), False, "an older copy"),
    "it joins": ((status("a", "owner"), status("b", "joining", 0)), False, "serves no messages yet"),
    **{
        kind: (
            (status("a", "owner"), status("b", "current", **{kind: (ConfigName("topic", "t"),)})),
            kind in ("unlisted", "withheld"),
            "topic t",
        )
        for kind in ("unlisted", "differing", "withheld", "dropped", "failed")
    },
}
BROKEN["a slow interpreter"] = (
    of(broker(interpreter="CPython 3.12.1, built without optimisation")),
    "interpreters",
    True,
    "CPython 3.12.1",
)
BROKEN["damage was met"] = (
    of(replace(broker(), holdings=Holdings(counters={"damaged_ranges": 2, "messages_in": 9}))),
    "counters",
    False,
    "2 damaged places of the log were met",
)
BROKEN["syncs are slow"] = (
    of(replace(broker(), holdings=Holdings(counters={"flush_timeouts": 1_000}))),
    "counters",
    True,
    "1,000 acknowledgements came before their sync",
)
BROKEN |= {
    name: (of(configs=statuses), "configuration", note, what)
    for name, (statuses, note, what) in OF_CONFIGURATION.items()
}


def test_a_follower_that_stays_behind_is_found() -> None:
    before = (status("a", "owner", 9), status("b", "current", 8))
    (finding,) = found(
        of(configs_before=before, configs=(status("a", "owner", 12), status("b", "current", 8)))
    )
    assert (finding.check, finding.where) == ("configuration", "b")
    assert finding.what == "it has version 8 of the configuration, and a has 9"
    assert (
        found(of(configs_before=before, configs=(status("a", "owner", 12), status("b", "current", 9)))) == []
    )
    assert found(of(configs=before)) == [], "one answer shows no delay"


def test_a_member_that_was_stopped_in_order_was_not_named() -> None:
    members = tuple(ConfigMember(name, 9, live=name in "ab") for name in "abcd")
    owner = status("a", "owner", members=members)
    evidence = of(broker("a"), lost=(LostBroker("c", "k", "10.0.0.1:1", 5, 1, 1),), configs=(owner,))
    shown = [(one.check, one.where, one.note) for one in found(evidence) if one.check == "configuration"]
    assert shown == [("configuration", "d", True)], "c is named as lost, and b answers elsewhere"


def test_many_unlisted_topics_are_cut() -> None:
    names = tuple(ConfigName("topic", f"t{number}") for number in range(10_000))
    shown = found(of(configs=(status("a", "owner"), status("b", "current", unlisted=names))))
    assert len(shown) == 9
    assert shown[-1].what == "9,992 more of it are unlisted"


def test_other_commands_mend_a_shared_configuration() -> None:
    orderly = GroupSettings(orderly=True)
    (lacked,) = found(of(holding("a", 4, 8), holding("b", 4), **SHARED))
    assert lacked.to_do == "if it is to be there, too: trovemq topic spread t1 --brokers a,b"
    (group_,) = found(of(holding("a", settings=GroupSettings()), holding("b", settings=orderly), **SHARED))
    assert group_.to_do.endswith("trovemq cluster config")
    (many,) = found(of(holding("a", *[1] * 20), holding("b"), **SHARED))
    assert "trovemq cluster balance --dry-run" in many.to_do


def test_queues_as_the_configuration_says_are_no_fault() -> None:
    assert found(of(holding("a", 4), holding("b", 8), **SHARED)) == []


def test_a_warning_of_the_configuration_was_found_twice() -> None:
    waits = broker("b", reasons=("configuration: it waits",), warnings=("configuration: w",))
    shared = (status("a", "owner"), status("b", "waiting"))
    assert [one.check for one in found(of(broker("a"), waits, configs=shared))] == ["configuration"]
    assert [one.check for one in found(of(broker("a"), waits))] == ["ready", "ready"]


def test_many_topics_that_differ_flooded_the_answer() -> None:
    shown = found(of(holding("a", *[4] * 10_000), holding("b", *[8] * 10_000)))
    shown = [one for one in shown if one.check == "topic_spread"]
    assert len(shown) == 9
    assert (shown[-1].what, shown[-1].where) == ("9,992 more topics differ between brokers", "a, b")


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found_by_its_check_alone(name: str) -> None:
    evidence, check, note, what = BROKEN[name]
    (finding,) = found(evidence)
    assert (finding.check, finding.note) == (check, note)
    assert what in finding.what


def test_every_check_finds_something_here() -> None:
    assert {check for _, check, _, _ in BROKEN.values()} == set(CHECKS)


@pytest.mark.parametrize(
    "evidence",
    [
        of(broker(now=NOW + 1_900)),
        of(replace(broker(now=NOW + 6_000), asked=NOW - 5_000, answered=NOW + 5_000)),
        of(broker(store_mode=0, open_files=0, open_files_max=0)),
        of(groups=(group(lag=51, oldest_ms=5_000),)),
        of(groups=(group(members=0, lag=0, lag_before=0),)),
        of(holding("a", 4), holding("b", 4), holding("c", 4)),
        of(holding("a", rate=99.0), holding("b", rate=0.0)),
        of(holding("a", 4)),
        of(
            holding("a", 4),
            replace(holding("b"), info=BrokerInfo("other", "b", "10.0.0.1:8081", version=VERSION)),
        ),
    ],
    ids=[
        "a small difference",
        "a slow answer",
        "unknown to the machine",
        "a moment's lag",
        "an idle group",
        "the same everywhere",
        "a low rate",
        "one broker",
        "two clusters",
    ],
)
def test_what_is_no_fault_is_not_found(evidence: Evidence) -> None:
    assert found(evidence) == []


def test_a_topic_that_is_lacked_comes_with_the_command_that_makes_it() -> None:
    options = {"deduplicate": "1h", "indexed_properties": "carrier,origin"}
    there = Holdings({"orders": TopicDescription("orders", 3, "FIFO", False, (), "a", options)})
    evidence = of(replace(broker("a"), holdings=there), replace(broker("b"), holdings=Holdings()))
    (finding,) = found(evidence)
    assert (finding.where, finding.to_do) == (
        "b",
        "trovemq topic create orders --queues 3 --type FIFO --deduplicate 1h --indexed-property carrier"
        " --indexed-property origin --broker b",
    )


def test_a_group_with_settings_of_its_own_is_carried_over_by_a_file() -> None:
    for settings, to_do in (
        (GroupSettings(orderly=True), "trovemq group create billing --orderly --broker b"),
        (GroupSettings(retry_max=3), "trovemq export --group billing > group.yaml, then: trovemq apply"),
    ):
        (finding,) = found(of(holding("a", settings=settings), holding("b")))
        assert finding.to_do.startswith(to_do)


def test_a_drained_broker_is_compared_with_none() -> None:
    leaving = replace(holding("b"), condition=broker("b", drain="drained").condition)
    assert {one.check for one in found(of(holding("a", 4), leaving))} == {"drained"}


def test_problems_come_before_notes() -> None:
    evidence = of(broker(drain="drained", disk_full=True, open_files_max=1_024))
    assert [finding.note for finding in found(evidence)] == [False, True, True]


def test_one_finding_is_no_plural() -> None:
    assert [counted(number, "note") for number in (0, 1, 2)] == ["0 notes", "1 note", "2 notes"]


def test_a_slow_interpreter_is_a_note_with_its_remedy() -> None:
    (found,) = findings(of(broker(interpreter="CPython 3.12.1, built without optimisation")))
    assert (found.check, found.where, found.note) == ("interpreters", "a", True)
    assert "CPython 3.12.1" in found.what
    assert "--enable-optimizations" in found.to_do
    assert findings(of(broker(interpreter="CPython 3.12.1"))) == []
