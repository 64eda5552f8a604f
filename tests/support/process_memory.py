"""How much memory a process has, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def memory_kib(name: str, process: int | str = "self") -> int:
    """name: VmRSS (now) or VmHWM (at most, since restart_peak)."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise AssertionError(name)


def restart_peak(process: int | str = "self") -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")
