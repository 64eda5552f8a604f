"""After a crash at any moment of a broker's life, the next start recovers all promised messages.

At every boundary (before each write, sync, preallocation, rename, removal, sync of a directory, also those
that a recovery makes itself) four trees are built: the synced bytes alone, everything, any part of the
unsynced pages of 4 KiB, and of the sectors of 512 bytes; each with any of the names and sizes that were not
synced. Each is opened by the code that ships and compared with the promises of that moment.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.durability.crash_check import Recovered
from tests.durability.crash_script import Script
from tests.support.trials import SOAK, Trials
from trovemq_store.files.memory import PAGE_SIZE, SECTOR_SIZE, MemoryFileSystem

pytestmark = pytest.mark.usefixtures("small_timer_wheel")

STEPS = 30
SCRIPTS = 40
DEFAULT = 4
PARTS = 4
LOOKS = 2


class CrashEverywhere:
    """A script's boundary: recovers and checks each tree that differs from all before."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._seen: set[tuple[object, ...]] = set()
        self._looked: Counter[tuple[str, str, str]] = Counter()
        self.states = 0
        self.boundary = 0

    def __call__(self, script: Script, operation: str, path: str) -> None:
        self.boundary += 1
        for kind, tree in self._trees(script.files):
            if self._is_known(operation, path, kind):
                continue
            if self._is_new(tree, script):
                try:
                    self._check(tree, script)
                except BaseException as error:
                    error.add_note(f"crash ahead of {operation} {path}, boundary {self.boundary}: {kind}")
                    raise

    def _is_known(self, operation: str, path: str, kind: str) -> bool:
        """Whether crashes of this kind ahead of this operation on files of this kind were looked at often
        enough in this script, but by chance now and then: a soak looks at all of them."""
        self._looked[operation, path.partition("/")[0], kind] += 1
        looked = self._looked[operation, path.partition("/")[0], kind]
        return not SOAK and looked > LOOKS and self._source.random() < 0.9

    def _trees(self, files: MemoryFileSystem) -> Iterator[tuple[str, MemoryFileSystem]]:
        odds = self._source.choice((0.2, 0.5, 0.8))
        yield "synced only", files.after_power_cut()
        yield "everything", files.after_power_cut(lambda: True)
        for unit in (PAGE_SIZE, SECTOR_SIZE):
            yield f"some of {unit}", files.after_power_cut(lambda: self._source.random() < odds, unit=unit)

    def _is_new(self, tree: MemoryFileSystem, script: Script) -> bool:
        promises = script.promises
        content = hash(tuple((path, bytes(tree._files[path].data)) for path in sorted(tree._files)))
        known = (content, promises.durable_end, promises.begins, tuple(promises.persisted.items()))
        if known in self._seen:
            return False
        self._seen.add(known)
        return True

    def _check(self, tree: MemoryFileSystem, script: Script) -> None:
        self.states += 1
        state = (script.settings, script.files.log, script.promises, script.now_ms, self._source)
        recovered = Recovered(tree, *state)
        recovered.check_store()
        recovered.check_again(script.settings)
        recovered.check_consumers()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_a_crash_leaves_is_recovered_as_it_was_promised(trials: Trials, part: int) -> None:
    for number in trials.numbers(SCRIPTS, default=DEFAULT, part=part, parts=PARTS):
        with trials.one(number) as source:
            crashes = CrashEverywhere(random.Random(number))
            script = Script(source, crashes)
            for _ in range(STEPS):
                script.step()
        trials.count("R2", "crash states", crashes.states)
