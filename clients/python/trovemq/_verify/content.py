"""The messages of a run: their content follows from the seed, the producer's number and their own number."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256, shake_256

RUN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class RunContent:
    """The content of the messages of one run.

    Attributes:
        seed: Two runs with the same seed have the same messages: use a seed once per topic.
        size: Bytes of each body.
        key_count: How many different keys the messages share.
        run: The run's name; its message ids and keys begin with it.
    """

    seed: int
    size: int
    key_count: int
    run: str = field(init=False)

    def __post_init__(self) -> None:
        digest = sha256(f"trovemq run {self.seed}".encode()).hexdigest()
        object.__setattr__(self, "run", f"verify-{digest[:RUN_DIGITS]}")

    def message_id(self, producer: int, number: int) -> str:
        """The UNIQ_KEY of a producer's message `number`; no other message of the run has it."""
        return f"{self.run}-{producer}-{number}"

    def key(self, number: int) -> str:
        """The key of every message with that number."""
        return f"{self.run}-k{number % self.key_count}"

    def body(self, producer: int, number: int) -> bytes:
        """`size` bytes that cannot be compressed."""
        return shake_256(f"{self.seed}/{producer}/{number}".encode()).digest(self.size)
