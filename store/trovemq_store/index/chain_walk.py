"""A walk along the chains of one hash, from the newest index file to the oldest, in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence

from trovemq_proto.positions import PhysicalOffset
from trovemq_store.index.index_file import IndexFile


class ChainWalk:
    """Finds the physical offsets of the items of one hash in [begin, end), newest first.

    A chain holds every key of its slot, so a step may find nothing. The walk trusts that phy never grows
    along a chain, and that an item's predecessor has a smaller number; a link that breaks this rule ends the
    chain. `place` names the item that comes next, to continue with another walk; None when there is none.
    """

    def __init__(
        self,
        files: Sequence[IndexFile],
        key_hash: int,
        begin_physical: PhysicalOffset,
        end_physical: PhysicalOffset,
        place: tuple[str, int] | None = None,
    ) -> None:
        """files: newest first."""
        self._files = list(files)
        self._hash = key_hash
        self._begin = begin_physical
        self._end = end_physical
        self._at = 0
        self._number = 0
        if not self._resume_at(place):
            self._enter(0)

    def _resume_at(self, place: tuple[str, int] | None) -> bool:
        if place is None:
            return False
        for at, file in enumerate(self._files):
            if file.name == place[0] and file.in_chain_of(place[1], self._hash):
                self._at, self._number = at, place[1]
                return True
        return False

    @property
    def done(self) -> bool:
        return self._number == 0

    @property
    def place(self) -> tuple[str, int] | None:
        return None if self.done else (self._files[self._at].name, self._number)

    def _enter(self, at: int) -> None:
        """Goes to the newest item of the first file from `at` on that has any."""
        self._number = 0
        while at < len(self._files) and self._number == 0:
            self._at, self._number = at, self._files[at].newest_item(self._hash)
            at += 1

    def take(self, steps: int) -> list[PhysicalOffset]:
        """The offsets found in the next `steps` items."""
        found = []
        while steps > 0 and self._number:
            steps -= 1
            key_hash, physical, _, previous = self._files[self._at].item(self._number)
            if physical < self._begin:
                self._number = 0  # so are those of all older items, in all files
                break
            if key_hash == self._hash and physical < self._end:
                found.append(physical)
            if 0 < previous < self._number:
                self._number = previous
            else:
                self._enter(self._at + 1)
        return found
