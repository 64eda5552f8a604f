"""`trovemq cluster config` and `config-owner`: answers, questions, changes and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.support.configs import MARK, SECOND, status
from trovemq import (
    BrokerAnswers,
    BrokerInfo,
    BrokerRoute,
    ClusterState,
    ConfigMember,
    ConfigName,
    ConfigStatus,
    ConfigTakeOver,
    LostBroker,
)
from trovemq.cli import cluster_config
from trovemq.cli.config_problems import problems_of
from trovemq_proto import errors
from trovemq_proto.errors import TroveError


@dataclass
class Cluster:
    """Brokers that answer, those that do not, and lost ones."""

    statuses: Sequence[ConfigStatus]
    missing: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    made: ConfigTakeOver | TroveError | None = None
    taken: list[tuple[str, str | None, str | None]] = field(default_factory=list)

    @property
    def admin(self) -> Cluster:
        return self

    config = brokers = _pool = admin

    @staticmethod
    def unasked() -> int:
        return 0

    async def close(self) -> None:
        """It has no connection."""

    async def cluster(self) -> ClusterState:
        names = [*(one.broker for one in self.statuses), *self.missing]
        routes = tuple(BrokerRoute(BrokerInfo("c", name, "10.0.0.1:8081"), ()) for name in names)
        return ClusterState(routes, 1, tuple(LostBroker(name, "c", "", 1, 0, 0) for name in self.lost))

    async def clear_dropped(self, broker: str) -> int:
        found = {one.broker: len(one.dropped) for one in self.statuses}
        self.statuses = [replace(one, dropped=()) for one in self.statuses]
        return found[broker]

    async def awaited(self, _broker: str, *, within_s: float) -> ClusterState:
        return await self.cluster()

    # `self` is admin.config, too
    async def status(self) -> BrokerAnswers[ConfigStatus]:
        return BrokerAnswers(self.statuses, missing={*self.missing, *self.lost})

    async def take_over(self, broker: str, *, cluster: str | None, source: str | None) -> ConfigTakeOver:
        self.taken.append((broker, cluster, source))
        assert self.made is not None
        if isinstance(self.made, TroveError):
            raise self.made
        return self.made


MADE = ConfigTakeOver(
    cluster="c1",
    owner="b",
    generation=SECOND,
    version=7,
    source="c",
    promised=("b", "c"),
    unreached=("a",),
    dropped=(ConfigName("topic", "bills", "1.0123:8"),),
)
THREE = (
    status("a", "owner", members=(ConfigMember("b", 7, True), ConfigMember("c", 5, False))),
    status("b", "current"),
    status("c", "stored", 5, unlisted=(ConfigName("topic", "old orders"),)),
)


def test_a_broker_of_another_cluster_is_said_to_miss_its_owner(run: Any) -> None:
    run.client = Cluster([status("a", "owner"), status("b", "stored", cluster="c2", owner="z")])
    shown = " ".join(run("cluster", "config").out.decode().split())
    assert "b: it serves by its stored table, because it does not reach the owner z" in shown


def test_the_table_and_what_to_mend(run: Any) -> None:
    run.client = Cluster(THREE)
    ran = run("cluster", "config")
    lines = ran.out.decode().splitlines()
    assert ran.code == 0
    assert [line.split() for line in lines[1:4]] == [
        ["a", "owner", "a", "1.0123", "7", "0", "0"],
        ["b", "current", "a", "1.0123", "7", "0", "0"],
        ["c", "stored", "a", "1.0123", "5", "2", "2"],
    ]
    shown = " ".join(lines[4:])
    assert "c: it serves by its stored table, because it does not reach the owner a" in shown
    assert "trovemq topic adopt 'old orders'" in shown


def test_as_objects(run: Any) -> None:
    run.client = Cluster(THREE)
    ran = run("--json", "cluster", "config")
    assert ran.objects[0] == {
        "broker": "a", "state": "owner", "problem": None, "cluster": "c1", "owner": "a",
        "generation": 1, "mark": MARK, "version": 7, "lacks": 0, "problems": [],
    }  # fmt: skip
    unlisted = ran.objects[2]["problems"][1]
    assert (unlisted["problem"], unlisted["kind"], unlisted["name"]) == ("unlisted", "topic", "old orders")


def test_dropped_changes_are_cleared_when_an_operator_says_so(run: Any) -> None:
    owner = status("a", "owner", dropped=(ConfigName("topic", "bills"),))
    run.client = Cluster((owner, status("b", "current")))
    (problem,) = run("--json", "cluster", "config").objects[0]["problems"]
    assert problem["toDo"].endswith("trovemq cluster config --clear-dropped")
    ran = run("cluster", "config", "--clear-dropped")
    assert "a: 1 dropped change cleared" in ran.err
    assert run("--json", "cluster", "config").objects[0]["problems"] == []


def test_brokers_without_a_shared_configuration_have_no_problem(run: Any) -> None:
    run.client = Cluster((status("a", "alone"), status("b", "alone")))
    ran = run("cluster", "config")
    assert [line.split() for line in ran.out.decode().splitlines()[1:]] == [
        [name, "alone", "-", "-", "-", "-", "0"] for name in "ab"
    ]
    assert "set config_owner to share one" in ran.err
    assert run("--json", "cluster", "config").objects[0]["version"] is None


def test_an_owner_that_is_away_is_named_once_for_all(run: Any) -> None:
    run.client = Cluster((status("b", "stored"), status("c", "stored")), missing=("a",))
    ran = run("--json", "cluster", "config")
    assert [one["problems"] for one in ran.objects] == [[], []]
    (problem,) = ran.note["problems"]
    assert problem["what"].startswith("a, which owns the configuration, does not answer")
    assert "trovemq cluster config-owner NAME" in problem["toDo"]
    assert ran.note["missing"] == ["a"]


def test_a_member_that_is_in_no_routes_is_missing(run: Any) -> None:
    run.client = Cluster((status("a", "owner", members=(ConfigMember("z", 3, False),)),))
    assert run("--json", "cluster", "config").note["missing"] == ["z"]


def test_a_long_list_is_cut_for_people(run: Any) -> None:
    entries = tuple(ConfigName("group", f"g{number}") for number in range(30))
    run.client = Cluster((status("a", "owner"), status("b", "current", unlisted=entries)))
    out = run("cluster", "config").out.decode()
    assert "b: 10 more unlisted → see --json" in out.replace("\n", " ")
    assert len(run("--json", "cluster", "config").objects[1]["problems"]) == 30


@pytest.mark.parametrize(
    ("statuses", "said", "to_do"),
    [
        ([status("a", "owner"), status("b", "alone")], "b: it has its own", "config_owner=a on it"),
        (
            [status("a", "owner"), status("b", "owner", cluster="c2", owner="b")],
            "a, b: the brokers have the configurations of 2 clusters: c1 on a; c2 on b",
            "config-owner NAME --cluster",
        ),
        (
            [status("a", "owner"), status("b", "owner", owner="b", generation=SECOND)],
            "a, b: several brokers own the configuration: a (generation 1.0123), b (generation 2.0123)",
            "follow b",
        ),
        ([status("a", "superseded"), status("b", "current")], "a: no broker owns", "repeat"),
        ([status("a", "contradicted", problem="b has 9")], "a: its store was put back", "--source BROKER"),
        ([status("a", "owner"), status("b", "joining")], "b: it waits for the owner a", "start a"),
        ([status("a", "owner"), status("b", "removed")], "b: it was removed", "empty store"),
        ([status("a", "owner"), status("b", "unknown")], "b: it is older", "upgrade"),
        ([status("a", "owner"), status("b", "current", problem="p")], "b: p", "one-configuration.md"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_problem_is_named_with_what_to_do(
    statuses: Sequence[ConfigStatus], said: str, to_do: str
) -> None:
    found = list(problems_of(statuses))
    lines = list(cluster_config.problem_lines(found))
    assert any(line.startswith(said) and to_do in line.partition(" → ")[2] for line in lines), lines


@pytest.mark.parametrize("kind", ["unlisted", "differing", "withheld", "dropped", "failed"])
@pytest.mark.parametrize("entry", ["topic", "group", "user", "rule", "quota"])
def test_each_entry_to_mend_has_a_text_and_a_command(kind: str, entry: str) -> None:
    names = {kind: (ConfigName(entry, "x", "why"),)}
    (found,) = problems_of([status("a", "owner", **names)])
    assert (found.kind, found.entry) == (kind, ConfigName(entry, "x", "why"))
    assert found.what.startswith(f"{entry} x")
    assert ("(why)" in found.what) == (kind != "differing")
    assert "trovemq" in found.to_do or kind == "failed"


# --- config-owner -----------------------------------------------------------------------------------------
AWAY = Cluster((status("b", "stored"), status("c", "stored", 6)), missing=("a",), lost=("d",), made=MADE)


def test_a_take_over_prints_what_was_dropped(run: Any) -> None:
    run.client = AWAY
    ran = run("--json", "cluster", "config-owner", "b", "--yes", "--source", "c", "--cluster", "c1")
    assert ran.code == 0
    assert AWAY.taken[-1] == ("b", "c1", "c")
    assert ran.objects == [
        {
            "broker": "b", "cluster": "c1", "generation": 2, "mark": MARK, "version": 7, "source": "c",
            "promised": ["b", "c"], "unreached": ["a"],
            "dropped": [{"kind": "topic", "name": "bills", "message": "1.0123:8"}],
        }
    ]  # fmt: skip
    shown = run("cluster", "config-owner", "b", "--yes")
    assert "1 change\n" in shown.out.decode()
    assert "bills" in shown.out.decode()
    assert "config_owner=b" in shown.err


def test_the_question_says_who_is_not_reachable_and_what_is_lost(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("trovemq.cli.session.Session.confirm", lambda _, text, *, yes: asked.append(text))
    run.client = AWAY
    run("cluster", "config-owner", "b", "--source", "c")
    (question,) = asked
    assert question.splitlines() == [
        "Reachable: b (version 7), c (version 6).",
        "Not reachable: a, d. Changes that only these hold are lost.",
        "The copy of c continues: changes that it lacks are dropped.",
        "Make b the owner of the cluster's configuration?",
    ]
    run.client = Cluster(THREE, made=MADE)
    run("cluster", "config-owner", "b")
    assert "a owns it now and is reachable; it will follow b." in asked[-1]


def test_without_a_terminal_it_needs_yes(run: Any) -> None:
    run.client = Cluster(THREE, made=MADE)
    ran = run("cluster", "config-owner", "b")
    assert (ran.code, run.client.taken) == (2, [])
    assert "--yes" in ran.err


@pytest.mark.parametrize(
    ("cluster", "words", "spec", "said"),
    [
        (Cluster(THREE), ["z"], errors.BROKER_NOT_FOUND, "no broker z (live: a, b, c)"),
        (AWAY, ["d"], errors.BROKER_NOT_FOUND, "broker d is lost"),
        (AWAY, ["a"], errors.BROKER_UNREACHABLE, "does not answer"),
        (Cluster((status("a", "alone"),)), ["a"], errors.CONFIG_ABSENT, "none of a has"),
        (Cluster(THREE), ["a"], errors.CONFIG_OWNER_ALREADY, "in generation 1.0123"),
        (Cluster(THREE), ["b", "--cluster", "x"], errors.CONFIG_OTHER_CLUSTER, "there is c1"),
        (Cluster(THREE), ["b", "--source", "z"], errors.BROKER_NOT_FOUND, "these have one: a, b, c"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_take_over_that_cannot_be_is_refused_before_it_is_asked(
    cluster: Cluster, words: list[str], spec: errors.ErrorSpec, said: str, run: Any
) -> None:
    cluster.taken.clear()
    run.client = cluster
    ran = run("--json", "cluster", "config-owner", *words)
    assert (ran.code, ran.note["error"], cluster.taken) == (1, spec.symbol, [])
    assert said in ran.note["message"]


def test_a_take_over_without_an_answer_is_in_doubt(run: Any) -> None:
    run.client = Cluster(THREE, made=TroveError(errors.REQUEST_TIMEOUT, "b did not answer"))
    ran = run("--json", "cluster", "config-owner", "b", "--yes")
    assert (ran.code, ran.note["error"]) == (1, "REQUEST_TIMEOUT")
    assert ran.note["message"] == (
        "b did not answer; see trovemq cluster config, and repeat it if no broker is the owner"
    )
    run.client = Cluster(THREE, made=TroveError(errors.CONFIG_OWNER_OLD, "name the broker"))
    assert run("--json", "cluster", "config-owner", "b", "--yes").note["message"] == "name the broker"


def test_the_owner_itself_takes_over_from_another_copy(run: Any) -> None:
    run.client = Cluster(THREE, made=MADE)
    assert run("--json", "cluster", "config-owner", "a", "--source", "b", "--yes").code == 0
    assert run.client.taken == [("a", None, "b")]
