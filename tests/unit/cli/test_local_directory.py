"""The directory of a local cluster: members, ports, locks, logs, command lines."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_loop import fake_time
from trovemq.cli.local import directory as directory_module
from trovemq.cli.local import processes
from trovemq.cli.local.directory import check_ports, locked, members_of, nodes_of
from trovemq.cli.local.members import NEW_STORE, Member, Plan
from trovemq.cli.local.processes import trim_log
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError


def names(members: list[Member]) -> list[str]:
    return [member.name for member in members]


def symbol_of(call: Callable[[], object]) -> ErrorSpec:
    with pytest.raises(TroveError) as caught:
        call()
    return caught.value.spec


# --- members ----------------------------------------------------------------------------------------
@given(counts=st.lists(st.none() | st.integers(1, 6), min_size=1, max_size=6))
def test_members_keep_their_ports_over_every_sequence_of_starts(
    counts: list[int | None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("cluster")
    ports: dict[str, tuple[int, ...]] = {}
    most = 0
    for count in counts:
        members, stopped = members_of(directory, count)
        runs = count or max(1, most)
        most = max(most, runs)
        assert names(members) == ["nameserver", *(f"broker-{number}" for number in range(1, runs + 1))]
        assert names(stopped) == [f"broker-{number}" for number in range(runs + 1, most + 1)]
        for member in (*members, *stopped):
            assert ports.setdefault(member.name, member.ports) == member.ports
    every = [port for pair in ports.values() for port in pair]
    assert len({*every}) == len(every)


def test_a_first_start_has_one_broker_and_writes_the_file(tmp_path: Path) -> None:
    members, stopped = members_of(tmp_path, None)
    assert (names(members), stopped) == (["nameserver", "broker-1"], [])
    written = json.loads((tmp_path / "cluster.json").read_text(encoding="utf-8"))
    assert written["version"] == 1
    assert [Member(**one) for one in written["members"]] == members
    assert [member.group for member in members] == [None, "broker-1"]
    assert not (tmp_path / "cluster.json.new").exists()


def test_a_start_without_the_deleted_file_left_stores_out(tmp_path: Path) -> None:
    members_of(tmp_path, 3)
    for number in (1, 2, 3):
        (tmp_path / f"broker-{number}/store").mkdir(parents=True)
    (tmp_path / "cluster.json").unlink()  # as CLUSTER_DIRECTORY_ILLEGAL advises
    assert names(members_of(tmp_path, None)[0]) == ["nameserver", "broker-1", "broker-2", "broker-3"]


def test_nodes_of_a_group_keep_their_ports_and_know_each_other(tmp_path: Path) -> None:
    members, stopped = nodes_of(tmp_path, 3, 2)
    assert names(members) == ["nameserver", *(f"broker-{g}-{n}" for g in (1, 2) for n in (1, 2, 3))]
    assert not stopped
    assert [member.group for member in members[1:]] == ["broker-1"] * 3 + ["broker-2"] * 3
    assert nodes_of(tmp_path, 3, None) == (members, [])
    fewer, left = nodes_of(tmp_path, 2, 1)
    assert (names(fewer), len(left)) == (["nameserver", "broker-1-1", "broker-1-2"], 4)

    plan = Plan(tmp_path, members)
    settings = settings_of(plan, "broker-2-1")
    named = ",".join(f"{one.name}@{one.address}/{one.replication}" for one in members[4:])
    assert f"replica_nodes={named}" in settings
    assert {"coordination=manual", "node_name=broker-2-1"} <= set(settings)
    assert not [one for one in settings if one.startswith("config_owner")], "its leader changes"
    (key,) = [one for one in settings if one.startswith("sealing_key_file=")]
    assert key in settings_of(plan, "broker-2-3")
    assert key not in settings_of(plan, "broker-1-1")


def test_a_group_with_etcd_has_a_member_for_it(tmp_path: Path) -> None:
    members, stopped = nodes_of(tmp_path, 3, 1, etcd=True)
    assert (names(members), stopped) == (["etcd", "nameserver", *(f"broker-1-{n}" for n in (1, 2, 3))], [])
    assert nodes_of(tmp_path, 3, None, etcd=True) == (members, [])
    plan, etcd = Plan(tmp_path, members), members[0]
    assert [[one.role for one in stage] for stage in plan.stages()] == [
        ["etcd"],
        ["nameserver"],
        ["broker"] * 3,
    ]
    assert (etcd.role, plan.store(etcd)) == ("etcd", tmp_path / "etcd/store")
    arguments = plan.arguments(etcd)
    assert f"--listen-client-urls=http://{etcd.address}" in arguments
    assert f"--data-dir={tmp_path}/etcd/store" in arguments
    assert not [one for one in arguments if one.startswith("--http")], "it is no daemon of ours"
    assert {"coordination=etcd", f"etcd_endpoints={etcd.address}"} <= set(settings_of(plan, "broker-1-2"))
    assert symbol_of(lambda: nodes_of(tmp_path, 3, 1)) is errors.CLUSTER_DIRECTORY_ILLEGAL
    manual = tmp_path / "manual"
    manual.mkdir()
    nodes_of(manual, 3, 1)
    assert symbol_of(lambda: nodes_of(manual, 3, 1, etcd=True)) is errors.CLUSTER_DIRECTORY_ILLEGAL


def test_brokers_and_nodes_do_not_mix_in_a_directory(tmp_path: Path) -> None:
    single, grouped = tmp_path / "single", tmp_path / "grouped"
    for directory in (single, grouped):
        directory.mkdir()
    members_of(single, 1)
    nodes_of(grouped, 3, None)
    assert symbol_of(lambda: nodes_of(single, 3, None)) is errors.CLUSTER_DIRECTORY_ILLEGAL
    assert symbol_of(lambda: members_of(grouped, None)) is errors.CLUSTER_DIRECTORY_ILLEGAL


def damaged(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return changed


def second(name: str, value: object) -> Callable[[str], str]:
    return damaged(lambda document: document["members"][1].update({name: value}))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-3],
        lambda text: text + "x",
        lambda text: "[]",
        lambda text: text + " " * directory_module.FILE_BYTES_MAX,
        damaged(lambda document: document.pop("version")),
        damaged(lambda document: document.update(version=2)),
        damaged(lambda document: document.update(version="new")),
        damaged(lambda document: document["members"].append(document["members"][0])),
        damaged(lambda document: document["members"][0].pop("port")),
        second("role", "dancer"),
        second("name", "../other"),
        second("name", 7),
        second("group", "other"),
        second("port", 0),
        second("port", 65_536),
        second("port", "8081"),
        second("port", True),
        second("more", 1),
    ],
)
def test_a_damaged_file_is_a_named_error(tmp_path: Path, change: Callable[[str], str]) -> None:
    members_of(tmp_path, 2)
    path = tmp_path / "cluster.json"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    before = path.read_bytes()
    assert symbol_of(lambda: members_of(tmp_path, 3)) is errors.CLUSTER_DIRECTORY_ILLEGAL
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "cluster.json.new").mkdir()
    assert symbol_of(lambda: members_of(tmp_path, 1)) is errors.CLUSTER_DIRECTORY_ILLEGAL


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    members, _ = members_of(tmp_path, 1)
    check_ports(members)
    with socket.socket() as other:
        other.bind(("127.0.0.1", members[1].http_port))
        other.listen()
        with pytest.raises(TroveError, match=f"{members[1].http}, which broker-1 has") as caught:
            check_ports(members)
    assert caught.value.spec is errors.ADDRESS_IN_USE
    check_ports(members)


# --- locks ------------------------------------------------------------------------------------------
@fake_time
async def test_two_commands_in_one_directory_are_a_named_error(tmp_path: Path) -> None:
    async with locked(tmp_path / "new"):
        with pytest.raises(TroveError, match=r"process \d+ runs the local cluster") as caught:
            async with locked(tmp_path / "new"):
                raise AssertionError
        assert caught.value.spec is errors.CLUSTER_RUNNING
    async with locked(tmp_path / "new"):
        pass


@fake_time
async def test_a_directory_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TroveError) as caught:
        async with locked(tmp_path / "file" / "c"):
            raise AssertionError
    assert caught.value.spec is errors.CLUSTER_DIRECTORY_ILLEGAL


@fake_time
async def test_the_reason_of_a_file_in_its_place_was_that_it_exists(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TroveError, match="file is no directory") as caught:
        async with locked(tmp_path / "file"):
            raise AssertionError
    assert caught.value.spec is errors.CLUSTER_DIRECTORY_ILLEGAL


@fake_time
async def test_a_full_disk_refused_the_lock_by_an_unknown_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    async with locked(tmp_path):
        assert (tmp_path / "lock").read_bytes() == b""


@fake_time
async def test_the_lock_of_a_store_was_written_over(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "lock").write_text("lock", encoding="utf-8")
    with pytest.raises(TroveError, match="is the store of a broker") as caught:
        async with locked(tmp_path):
            raise AssertionError
    assert caught.value.spec is errors.CLUSTER_DIRECTORY_ILLEGAL
    assert (tmp_path / "lock").read_text(encoding="utf-8") == "lock"
    assert not (tmp_path / "daemons.lock").exists()


def left_behind(descriptor: int) -> subprocess.Popen[bytes]:
    """A daemon of a command that was killed: it has the descriptor, and ends when its input does."""
    return subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"],
        stdin=subprocess.PIPE,
        pass_fds=(descriptor,),
    )


@fake_time
async def test_a_start_waits_for_daemons_of_a_killed_command(tmp_path: Path) -> None:
    async with locked(tmp_path) as descriptor:
        daemon = left_behind(descriptor)
    waited = []

    def end() -> None:
        waited.append(True)
        daemon.communicate()

    async with locked(tmp_path, end):
        assert waited == [True]


@fake_time
async def test_daemons_that_do_not_end_are_a_named_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "DAEMONS_STOP_S_MAX", -1.0)
    async with locked(tmp_path) as descriptor:
        daemon = left_behind(descriptor)
    with pytest.raises(TroveError, match=rf"a command that was killed .*: process {daemon.pid}$") as caught:
        async with locked(tmp_path):
            raise AssertionError
    daemon.communicate()
    assert caught.value.spec is errors.CLUSTER_RUNNING


# --- command lines and logs -------------------------------------------------------------------------
def settings_of(plan: Plan, name: str) -> list[str]:
    arguments = plan.arguments(next(member for member in plan.members if member.name == name))
    return [value for option, value in itertools.pairwise(arguments) if option == "--set"]


def test_a_new_store_gets_small_files_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    members, _ = members_of(tmp_path, 2)
    plan = Plan(tmp_path, members, ["maxIndexNum=9", "flush_mode=async"])
    small = [f"{name}={size}" for name, size in NEW_STORE.items() if name != "index_item_count"]
    assert settings_of(plan, "broker-1") == [*small, "maxIndexNum=9", "flush_mode=async"]
    (tmp_path / "broker-1/store/commitlog").mkdir(parents=True)
    (tmp_path / "broker-1/store/commitlog/00000000000000000000").touch()
    assert settings_of(plan, "broker-1") == ["maxIndexNum=9", "flush_mode=async"]
    assert settings_of(plan, "broker-2")[1:3] == small
    assert settings_of(plan, "nameserver") == []


def test_all_brokers_share_the_configuration_of_the_first(tmp_path: Path) -> None:
    members, _ = members_of(tmp_path, 3)
    plan = Plan(tmp_path, members)
    owned = {
        member.name: [one for one in settings_of(plan, member.name) if one.startswith("config_owner")]
        for member in plan.of("broker")
    }
    setting = [f"config_owner=broker-1@{members[1].address}"]
    assert owned == {"broker-1": [], "broker-2": setting, "broker-3": setting}


def test_a_broker_registers_with_the_nameserver_from_its_own_folder(tmp_path: Path) -> None:
    members, _ = members_of(tmp_path, 2)
    plan = Plan(tmp_path, members)
    assert [names(stage) for stage in plan.stages()] == [["nameserver"], ["broker-1", "broker-2"]]
    line = plan.arguments(members[2])
    pairs = dict(zip(line[::2], line[1::2], strict=True))
    assert pairs | {"--set": ""} == {
        "--listen": members[2].address,
        "--http": members[2].http,
        "--store": str(tmp_path / "broker-2/store"),
        "--name": "broker-2",
        "--nameserver": members[0].address,
        "--set": "",
    }
    assert plan.store(members[0]) is None


def test_a_long_log_is_replaced_and_its_writer_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOG_SIZE_MAX", 10)
    log = tmp_path / "log"
    trim_log(log)
    with log.open("ab", buffering=0) as daemon:
        for line in (b"0123456789", b"long\n", b"new\n"):
            trim_log(log)
            daemon.write(line)
            trim_log(log)
    assert log.read_bytes() == b"new\n"
    assert (tmp_path / "log.1").read_bytes() == b"0123456789long\n"


def test_a_long_log_on_a_full_disk_ended_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(processes, "LOG_SIZE_MAX", 10)
    monkeypatch.setattr(shutil, "copyfile", full)
    (tmp_path / "log").write_bytes(b"a long line")
    trim_log(tmp_path / "log")
    assert (tmp_path / "log").read_bytes() == b"a long line"


def test_last_words_are_the_last_line_of_the_log(tmp_path: Path) -> None:
    members, _ = members_of(tmp_path, 1)
    found = processes.Processes(Plan(tmp_path, members), {}, 0)
    log = tmp_path / "broker-1" / "log"
    assert found.last_words(members[1]) == f"log: {log}"
    log.parent.mkdir()
    log.write_text("x" * 10_000 + "\nerror: there is no setting 'x'\n\n", encoding="utf-8")
    assert found.last_words(members[1]) == f"error: there is no setting 'x' (log: {log})"
