"""R3: a file system that loses power under load. Messages that a broker acknowledged as on disk are there
afterwards.

The store lies on a separate ext4, in a file after a loop device. The file system's own shutdown ioctl
drops everything that it has not brought to its device, as a power cut does; then it is mounted again. The
process is stopped before: a sync that is under way may return 0 while the transaction of the journal that it
waits for is dropped, and a processor without power would not see that.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.durability.engine_process import Life
from tests.durability.killed_engine import KilledEngine, Moment, kill
from tests.durability.verified_daemon import SMALL_FILES, check, producers, wait_for_lines
from tests.support.trials import SOAK, Trials
from trovemq.testing import BrokerProcess
from trovemq_store.settings import FlushMode

pytestmark = pytest.mark.slow

WHAT: Final = "power cuts of a mounted file system"
STORES: Final = 10
DEFAULT_STORES: Final = 2
CUTS: Final = 10 if SOAK else 2
"""Of one store, one after another."""
STEPS_MAX: Final = 160
STEPS_OF_ONE_MAX: Final = 5
"""Steps of the load per acknowledged message, at most: the steps are drawn."""
KILLED_BEFORE: Final = 0.3
"""Probability that the process alone was killed first: the recovered bytes have to be synced too."""
DAEMON_CUTS: Final = 3 if SOAK else 2
NEW_LINES: Final = (100, 400)
"""The outcomes between two cuts of the daemon."""
STOP_S_MAX: Final = 240
UNMOUNT_S_MAX: Final = 90.0
IMAGE_SIZE: Final = 64 << 20
SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
FLUSH_JOURNAL: Final = 1  # a commit of the journal in memory reaches the device
DROP_ALL: Final = 2


class Disk:
    """An ext4 in a file; `path` is where it is mounted."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "mounted"
        self.path.mkdir()
        image = directory / "image"
        with image.open("wb") as file:
            file.truncate(IMAGE_SIZE)
        _run("mkfs.ext4", "-q", "-F", str(image))
        self._device = _run("losetup", "--find", "--show", str(image)).strip()
        self._mounted = False

    def mount(self) -> None:
        _run("mount", "-t", "ext4", self._device, str(self.path))
        self._mounted = True

    def unmount(self) -> None:
        """Waits until the file system is gone. A process that has the mounts for itself (`unshare -m`, in
        another test) keeps it alive: mounted again meanwhile, it would be the one that was shut down."""
        _run("umount", str(self.path))
        self._mounted = False
        deadline = time.monotonic() + UNMOUNT_S_MAX
        while Path("/sys/fs/ext4", Path(self._device).name).exists():
            assert time.monotonic() < deadline, f"somebody else still uses {self._device}"
            time.sleep(0.01)

    def cut(self, flag: int, pid: int) -> None:
        """Nothing more reaches the device; every call on the file system fails until it is mounted again. The
        process runs no further than to the end of its system calls."""
        stop(pid)
        directory = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", flag))
        finally:
            os.close(directory)

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):
            if self._mounted:
                self.unmount()
        _run("losetup", "--detach", self._device)


def stop(pid: int) -> None:
    """Returns when every thread of the process has stopped, or waits for a disk."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S_MAX
    while not _states(pid) <= {"T", "D"}:
        assert time.monotonic() < deadline, f"{pid} does not stop: {_states(pid)}"


def _states(pid: int) -> set[str]:
    tasks = Path(f"/proc/{pid}/task")
    return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()}


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def disk_at(directory: Path, trials: Trials) -> Iterator[Disk]:
    """Skips the test where this machine has no loop devices for us."""
    missing = [name for name in ("losetup", "mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        needed = ", ".join(missing) or "losetup, mkfs.ext4, mount"
        trials.skip("R3", WHAT, f"power cuts need root and {needed}")
    directory.mkdir()
    try:
        disk = Disk(directory)
    except subprocess.CalledProcessError as error:
        trials.skip("R3", WHAT, f"no loop device to be had: {error.stderr.strip()}")
    try:
        try:
            disk.mount()
        except subprocess.CalledProcessError as error:
            trials.skip("R3", WHAT, f"a loop device cannot be mounted: {error.stderr.strip()}")
        yield disk
    finally:
        disk.close()


def cut_again_and_again(
    engine: KilledEngine,
    disk: Disk,
    ledger: Path,
    number: int,
    source: random.Random,
    *,
    flush_mode: FlushMode = "sync",
    cuts: int = CUTS,
    without_sync: bool = False,
) -> tuple[int, int]:
    """How many steps and acknowledgements there were. At the end everything is delivered, and the store
    stopped."""
    lives = steps = acknowledged = 0
    after_power_cut = False

    def cut_power(pid: int) -> None:
        disk.cut(DROP_ALL if source.random() < 0.8 else FLUSH_JOURNAL, pid)
        kill(pid)

    def live(moment: Moment | None, end: Callable[[int], None] = kill) -> int:
        nonlocal lives, after_power_cut
        life = Life(
            store=str(disk.path / "store"),
            ledger=str(ledger),
            seed=f"{number} {lives}",
            number=lives,
            flush_mode=flush_mode,
            property_crc=number % 4 < 2,
            steps=0 if moment else 40,
            after_power_cut=after_power_cut,
            without_sync=without_sync,
        )
        report = engine.live(life, moment, end)
        lives += 1
        after_power_cut = end is cut_power or (after_power_cut and report.checked < 0)
        return report.acknowledged

    for _ in range(cuts):
        moment = Moment.draw(source, STEPS_MAX)
        steps += moment.steps
        if source.random() < KILLED_BEFORE:
            acknowledged += live(moment)
            moment = Moment(1, 0)  # before any sync but that of the recovery
        acknowledged += live(moment, cut_power)
        disk.unmount()
        disk.mount()
    live(None)
    live(None)
    return steps, acknowledged


@pytest.mark.parametrize("part", range(2))
def test_a_power_cut_takes_nothing_that_was_acknowledged_as_on_disk(
    part: int, trials: Trials, engine: KilledEngine, tmp_path: Path
) -> None:
    for number in trials.numbers(STORES, default=DEFAULT_STORES, part=part, parts=2):
        flush_mode: FlushMode = "async" if number % 2 else "sync"
        with trials.one(number) as source, disk_at(tmp_path / f"{number}", trials) as disk:
            steps, acknowledged = cut_again_and_again(
                engine, disk, tmp_path / f"{number}.ledger", number, source, flush_mode=flush_mode
            )
        trials.count("R3", WHAT, CUTS)
        assert steps > CUTS * STEPS_MAX / 8, "not all cuts come at the beginning"
        assert acknowledged * STEPS_OF_ONE_MAX >= steps, "too little was continuing"


def test_a_daemon_that_loses_power_has_everything_it_acknowledged(trials: Trials, tmp_path: Path) -> None:
    """With the group commit that decides when a reply goes out; the producers outlive the cuts."""
    source, ledger = random.Random(7), tmp_path / "ledger"
    with disk_at(tmp_path / "disk", trials) as disk:
        daemon = BrokerProcess(store=disk.path / "store", flushDiskType="SYNC_FLUSH", **SMALL_FILES)
        with daemon as broker:
            with producers(broker, ledger):
                for _ in range(DAEMON_CUTS):
                    wait_for_lines(ledger, source.randrange(*NEW_LINES))
                    disk.cut(DROP_ALL, broker.pid)
                    broker.kill()
                    disk.unmount()
                    disk.mount()
                    broker.start()
            assert check(broker, ledger) >= NEW_LINES[0] * DAEMON_CUTS


def test_the_cut_is_real_without_syncs_messages_are_lost(
    trials: Trials, engine: KilledEngine, tmp_path: Path
) -> None:
    with (
        disk_at(tmp_path / "disk", trials) as disk,
        pytest.raises(AssertionError, match=r"lost|STORE_FAILED|was synced up to|Damage\(|has gaps"),
    ):
        cut_again_and_again(engine, disk, tmp_path / "ledger", 0, random.Random(1), cuts=5, without_sync=True)
