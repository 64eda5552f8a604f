"""Whether the clock may be trusted with removing old messages: `trovemq/clock.json`, which RocketMQ does not
have.

    {"formatVersion": 1, "bootId": "…", "difference": ms, "since": ms, "crc32": "…"}

bootId      of the machine's run; another one after each start of the machine
difference  the clock minus the boot time, when the two were first seen to agree
since       the boot time then
(the CRC: store/trovemq_store/files/sealed_json.py)

The clock is trusted when it has agreed with the boot time, which runs on evenly, for TRUSTED_AFTER_MS. A step
of the clock begins the wait again. A restart of the broker does not: the file says since when they agree, and
the boot time continues, so a broker that restarts often still removes old messages. After a start of the
machine (or without a boot id) nothing is known of its clock, and the wait begins. Where messages are kept for
less than TRUSTED_AFTER_MS, as long a wait is enough: whatever was stored before it is old by the boot time.

Invariant: the file is only written when the wait begins, so it never says "since" earlier than was seen.
"""

from __future__ import annotations

from typing import Final

from trovemq_proto import errors
from trovemq_proto.errors import DamagedError, TroveError
from trovemq_proto.positions import EpochMs
from trovemq_store.files.files import FileSystem
from trovemq_store.topics.json_file import JsonFile
from trovemq_store.topics.lax_json import JsonObject

PATH: Final = "trovemq/clock.json"
FORMAT_VERSION: Final = 1
TRUSTED_AFTER_MS: Final = 3_600_000
AGREE_MAX_MS: Final = 60_000
"""The clock may drift from the boot time by this much, or be set by it, and still agrees."""


class ClockTrust:
    """One store's. `tick` on one thread; save() may block and run in another."""

    def __init__(self, files: FileSystem, boot_id: str) -> None:
        self._files = files
        self._boot_id = boot_id
        self._difference_ms: int | None = None
        self._since_ms = 0
        self._now_ms = EpochMs(0)
        self._boot_ms = 0
        self.unsaved = False
        """Whether save() has something to write."""
        self.stepped_ms = 0
        """How far the clock has stepped since the wait began, ahead if positive; 0 after a start."""

    def load(self) -> None:
        """Reads the file; a damaged one counts as missing. TroveError STORE_NEWER."""
        try:
            document = self._file().load() or {}
        except DamagedError:
            return
        version = document.get("formatVersion")
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise TroveError(
                errors.STORE_NEWER, f"{PATH} has format {version}; this version knows {FORMAT_VERSION}"
            )
        difference_ms, since_ms = document.get("difference"), document.get("since")
        if not self._boot_id or document.get("bootId") != self._boot_id:
            return
        if isinstance(difference_ms, int) and isinstance(since_ms, int):
            self._difference_ms, self._since_ms = difference_ms, since_ms

    def tick(self, now_ms: EpochMs, boot_ms: int) -> int:
        """The clock and the boot time. Returns how far the clock has stepped, 0 if it has not."""
        self._now_ms, self._boot_ms = now_ms, boot_ms
        difference_ms, known_ms = now_ms - boot_ms, self._difference_ms
        if known_ms is not None and abs(difference_ms - known_ms) <= AGREE_MAX_MS:
            return 0
        self._difference_ms, self._since_ms, self.unsaved = difference_ms, boot_ms, True
        self.stepped_ms = 0 if known_ms is None else difference_ms - known_ms
        return self.stepped_ms

    @property
    def remaining_ms(self) -> int:
        """How long the wait still takes; 0: the clock is trusted."""
        return max(0, TRUSTED_AFTER_MS - self._waited_ms)

    @property
    def _waited_ms(self) -> int:
        return 0 if self._difference_ms is None else self._boot_ms - self._since_ms

    def trusted_ms(self, kept_ms: int) -> EpochMs:
        """The clock's time as of the last tick, by which messages that are kept for kept_ms may be removed; 0
        while it is not trusted: by that time nothing is old."""
        wait_ms = min(TRUSTED_AFTER_MS, kept_ms)
        return EpochMs(0) if self._difference_ms is None or self._waited_ms < wait_ms else self._now_ms

    def save(self) -> None:
        """Writes the file; durable when it returns. TroveError DISK_FULL, STORE_FAILED, UNKNOWN_ERROR; then
        it is still unsaved."""
        document: JsonObject = {
            "formatVersion": FORMAT_VERSION,
            "bootId": self._boot_id,
            "difference": self._difference_ms,
            "since": self._since_ms,
        }
        self._file().save(document)
        self.unsaved = False

    def _file(self) -> JsonFile:
        return JsonFile(self._files, PATH, sealed=True)
