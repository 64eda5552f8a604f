"""Each list of the command line, as a table and as objects, compared with `lists.txt` byte for byte.

If they differ, the test leaves the new output in a separate file: copy it if the change is intended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.fake_groups import dead_letter
from tests.unit.cli.conftest import CommandLine
from tests.unit.cli.test_cluster_check import group
from trovemq.models.broker import SettingDescription
from trovemq.models.cluster import (
    BrokerInfo,
    BrokerRoute,
    BrokerStatistics,
    ClusterState,
    LostBroker,
    OffsetReset,
    TopicDescription,
    TopicQueue,
    TopicRoute,
)
from trovemq.models.group import (
    GroupDescription,
    GroupMember,
    GroupReset,
    GroupSettings,
    QueueLag,
    ResentDeadLetter,
)
from trovemq.models.search import SearchAnswer, SearchPart
from trovemq.models.security import AccessRule, Quota, QuotaDescription, UserDescription
from trovemq.models.store import ScrubProgress, StoreFinding
from trovemq.models.track import ConsumptionStatus, MessageCopy, MessageTrack, TrackEvent

GOLDEN: Final = Path(__file__).with_name("lists.txt")
THEN: Final = 1_700_000_000_000
QUEUES: Final = (
    TopicQueue(0, 0, 1_234_567, THEN, 4_096),
    TopicQueue(1, 5, 5, 0),
)
TOPICS: Final = [
    TopicDescription("orders", 2_000, "FIFO", False, QUEUES, "b", {"order": "priority", "deduplicate": "1h"}),
    TopicDescription("orders", 2, "NORMAL", True, (), "a"),
]
INFO: Final = BrokerInfo("c", "a", "127.0.0.1:8081", flush_mode="sync", version="0.1.0", data_version=3)
CLUSTER: Final = ClusterState(
    (BrokerRoute(INFO, (TopicRoute("orders", 2),)),),
    1,
    (LostBroker("z", "c", "127.0.0.1:8082", 7_200_000, 3, 2),),
)
SETTINGS: Final = GroupSettings(backoff_ms=(1_000, 5_000, 60_000, 7_200_000, 9_000))
GROUPS: Final = [
    GroupDescription("ship", GroupSettings(True, 3, (), True, 1_000, 60_000, 1.5), 2, ("orders",), "a"),
    GroupDescription("billing", SETTINGS, 0, (), "a", False, ("orders",)),
]
MEMBER: Final = GroupMember(
    "c\x1b1", "PUSH", "PYTHON", "0.1", "10.0.0.1:1", THEN, 1_000, "a", {"orders": "paid || late"}
)
LAGS: Final = [
    QueueLag("orders", 1, 0, 2_000, 5, 6, 2, 1_995, 61_500, True, "b"),
    QueueLag("orders", 0, 0, 0, None, 0, 0, 0, 0, False, "a"),
]
RESETS: Final = [GroupReset("a", 0, None, 7, 2), GroupReset("b", 1, 1_000, 7, 0)]
LETTER: Final = dead_letter("a", 7, {"KEYS": "k1 k2", "DLQ_ORIGIN_TOPIC": "orders"})
RESENT: Final = [
    ResentDeadLetter("a", 7, "orders", "AB" * 16),
    ResentDeadLetter("a", 8, "orders", "CD" * 16, again=True),
]
RULES: Final = [
    AccessRule(1, "alice", True, "Pub,Sub", "Topic:orders*", ("10.0.0.0/8", "::1"), "a"),
    AccessRule(2_000, "alice", False, "All", "*", (), "a"),
]
QUOTA: Final = Quota(requests_per_s=10_000, topics_max=3)
SCRUB: Final = ScrubProgress(
    "a", (StoreFinding("commitlog/00", 4_096, "bad\x07 CRC", False, "a"),), 9, 0, 9, 1_000, 2, 3, 1, 0, True
)
COPY: Final = MessageCopy(
    *("a", 1, "message", "orders", 0, 7, 4_096, 100, "AB" * 16, "U1", "k1", "paid", THEN, "h:1", THEN, "h:2"),
    *(0, "", "", "", 0),
)
WAITING: Final = ConsumptionStatus(
    *("a", 1, "billing", "not-reached", False, 0, 2, "c1", 1_500, True, None, 3, None, 2, 1, "paid"),
    *("orders", 0, 7, ""),
)
FILTERED: Final = replace(WAITING, group="ship", reason="filtered-out", consumed=True, ahead_estimated=False)
TRACK: Final = MessageTrack(
    (COPY,),
    (TrackEvent("a", 1, THEN, "delivered", "billing", "c1", 2, THEN + 9, 3, "orders", 0, 7, "late"),),
    (WAITING, FILTERED),
    True,
)

COUNTERS: Final = {
    "messages_in": 1_234_567,
    "bytes_in": 3_650_000_000,
    "duplicates": 0,
    "disk_used_percent": 41,
    "log_end_offset": 1_234_567,
    "timer_behind_ms": 7_300_000,
    "timer_lateness_max_ms": 12,
    "retention_early_newest_ms": THEN,
}
ANSWERS: Final[dict[str, object]] = {
    "admin.list_topics": TOPICS,
    "admin.describe_topic": TOPICS[:1],
    "admin.cluster": CLUSTER,
    "admin.statistics": [BrokerStatistics(INFO, COUNTERS)],
    "admin.reset_offset": [OffsetReset("a", 0, None, 7), OffsetReset("a", 1, 1_000, 7)],
    "admin.groups.list_all": GROUPS,
    "admin.groups.members": [MEMBER],
    "admin.groups.lag": LAGS,
    "admin.groups.reset": RESETS,
    "admin.groups.resent_dead_letters": RESENT[:1],
    "admin.groups.resend_dead_letters": RESENT,
    "admin.users.list_all": [UserDescription("alice", "Super", True, THEN, (THEN, THEN - 1), "a")],
    "admin.rules.list_all": RULES,
    "admin.quotas.list_all": [QuotaDescription("User:*", QUOTA, 1, 2_000, 0, "a")],
    "admin.replicas.groups": [],
    "admin.brokers.settings": [
        SettingDescription("flush_mode", '"sync"', "file", True, '"sync"', "sync|async", "When to flush", "a")
    ],
    "search": SearchAnswer((), True, None, (SearchPart("a", "key=k", 0, 9_000, 1_234, True),), lag_bytes=5),
    "track": TRACK,
}
STREAMS: Final[Mapping[str, object]] = {
    "admin.groups.dead_letters": LETTER,
    "admin.store.scrub": SCRUB,
}
VERBS: Final = (
    "cluster",
    "stats --seconds 0",
    "stats --seconds 0 --all",
    "errors DISK_FULL",
    "topic list",
    "topic describe orders",
    "topic describe orders --sizes",
    "group list",
    "group members billing",
    "group lag billing",
    "group lag --all",
    "group reset billing orders --to-offset 7",
    "group reset billing orders --to-offset 7 --preview",
    "group offset reset billing orders --to-offset 7",
    "dlq list billing",
    "dlq resend billing --all --yes",
    "user list",
    "acl list",
    "quota list",
    "config list",
    "store scrub",
    "search orders --key k --explain",
    "track U1",
)


class Answering:
    """A client whose calls answer with the values above, by their names."""

    def __init__(self, name: str = "") -> None:
        self._name = name

    def __getattr__(self, name: str) -> Answering:
        return Answering(f"{self._name}.{name}" if self._name else name)

    def __call__(self, *_: object, **__: object) -> Any:
        return self._each() if self._name in STREAMS else self._one()

    @staticmethod
    def unasked() -> int:
        return 0

    async def _one(self) -> Any:
        return ANSWERS.get(self._name)

    async def _each(self) -> AsyncIterator[Any]:
        yield STREAMS[self._name]


@pytest.fixture
def client() -> Answering:
    return Answering()


def test_damage_that_a_node_mends_itself_was_said_to_need_a_repair(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "admin.replicas.groups", [group(group="a")])
    ran = run("store", "scrub")
    assert ran.code == 1
    assert "takes damaged records from another copy" in ran.err
    assert "store repair" not in ran.err


def test_every_list_prints_the_same_bytes(run: CommandLine, tmp_path: Path) -> None:
    answers = []
    for verb in VERBS:
        for options in ((), ("--json",)):
            ran = run(*options, *verb.split())
            answers.append(f"$ trovemq {' '.join((*options, verb))}\n{ran.out.decode()}{ran.err}")
    printed = "\n".join(answers)
    (tmp_path / GOLDEN.name).write_text(printed, encoding="utf-8")
    assert printed.split("\n") == GOLDEN.read_text(encoding="utf-8").split("\n"), f"see {tmp_path}"
