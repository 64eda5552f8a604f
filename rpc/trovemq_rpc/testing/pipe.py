"""One direction of a connection in memory, and the faults that it may have.

A pipe keeps TCP's promises: bytes arrive in order, each once, and the end after the last one. All else is
up to the seed: where the bytes are cut, how long each piece takes, and whether the connection is lost.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

__all__ = ["Faults", "Pipe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The possible faults of a connection. The default is a fast network without any.

    `piece_size_max`: the most bytes that arrive together. Pieces have all sizes up to it, more often small
    ones. `delay_s_max`: the longest time that a piece takes; so connections overtake each other.
    `stall_chance`, `stall_s`: how likely a piece waits longer, and how long. `loss_chance`: how likely the
    connection breaks instead of delivering a piece.
    """

    piece_size_max: int = 1 << 20
    delay_s_max: float = 0.0
    stall_chance: float = 0.0
    stall_s: float = 1.0
    loss_chance: float = 0.0

    def piece_size(self, random: Random) -> int:
        """Small and large pieces are equally likely, so that frames are cut in their middle and at their
        ends.
        """
        return random.randint(1, 1 << random.randint(0, self.piece_size_max.bit_length() - 1))

    def delay_s(self, random: Random) -> float:
        delay = random.random() * self.delay_s_max
        if self.stall_chance and random.random() < self.stall_chance:
            delay += self.stall_s
        return delay

    def loses(self, random: Random) -> bool:
        return bool(self.loss_chance) and random.random() < self.loss_chance


class Pipe:
    """The bytes that one end has written and the other has not received."""

    def __init__(self, random: Random, faults: Faults | None = None) -> None:
        self.random = random
        self.faults = faults or Faults()
        self.size = 0
        self.ended = False
        self._pieces: deque[memoryview] = deque()

    def write(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Copies the bytes, as a socket does: the writer may change them afterwards."""
        assert not self.ended, "written after the end"
        for piece in pieces:
            if len(piece):
                self._pieces.append(memoryview(bytes(piece)))
                self.size += len(piece)

    def end(self) -> None:
        self.ended = True

    def take(self) -> bytes:
        """The next piece; empty where nothing is there."""
        wanted = self.faults.piece_size(self.random)
        taken = []
        while self._pieces and wanted:
            piece = self._pieces[0]
            if len(piece) > wanted:
                self._pieces[0] = piece[wanted:]
                piece = piece[:wanted]
            else:
                self._pieces.popleft()
            taken.append(piece)
            wanted -= len(piece)
        data = b"".join(taken)
        self.size -= len(data)
        return data

    def put_back(self, data: memoryview) -> None:
        """The end of the last piece, which the receiver left."""
        if data:
            self._pieces.appendleft(data)
            self.size += len(data)
