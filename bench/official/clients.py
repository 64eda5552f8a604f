"""The official clients' programs: installed, run through several servers in turn; and their answers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, PIPE
from typing import Final, Literal

from bench.report import Report
from tests.conformance.run import SuiteError, install, missing_tools

ROOT: Final = Path(__file__).resolve().parents[2]
LANGUAGES: Final = ("java", "python")
PROCESS_S_MAX: Final = 120
PROGRAMS: Final = {"python": "official.py", "java": "Official"}
REQUIREMENTS: Final = {"python": "requirements.lock", "java": "pom.xml"}
Work = Literal["send", "receive"]


class ClientError(Exception):
    """A program failed; the message says how."""


@dataclass(frozen=True, slots=True)
class Found:
    """One server's part. rates: messages a second, by turn, 0 where there were none; times: seconds of some
    calls of the last turn; count: all messages, those of the warm-up, too."""

    rates: list[float]
    times: list[float]
    count: int
    failures: int

    @property
    def rate(self) -> float:
        """The median of the turns with messages; 0 where there was none."""
        rates = [rate for rate in self.rates if rate]
        return median(rates) if rates else 0.0

    def ratio_to(self, other: Found) -> float | None:
        """The median over the turns in which both had messages; None where there was no such turn."""
        pairs = zip(self.rates, other.rates, strict=True)
        ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
        return median(ratios) if ratios else None


def installed(report: Report) -> dict[str, list[str]]:
    """The command of each official client that this machine can run; the others are notes."""
    commands = {}
    for language in LANGUAGES:
        if missing := missing_tools(language):
            report.notes.append(f"the official {language} client did not run: no {', '.join(missing)}")
            continue
        try:
            commands[language] = _install(language, ROOT / "build" / "bench" / language)
        except (SuiteError, OSError) as error:
            report.notes.append(f"the official {language} client could not be installed: {error}")
    return commands


def _install(language: str, folder: Path) -> list[str]:
    program = PROGRAMS[language]
    shutil.copytree(ROOT / "bench" / "clients" / language, folder, dirs_exist_ok=True)
    shutil.copy(ROOT / "tests" / "conformance" / language / REQUIREMENTS[language], folder)
    *command, _suite = install(language, folder)
    return [*command, *([str(folder / program)] if language == "python" else [program])]


async def run(
    command: Sequence[str], work: Work, topic: str, group: str, seconds: float, turns: int, *servers: str
) -> list[Found]:
    """The servers in turn, each `turns` times for `seconds`. ClientError."""
    text = await _output(*command, work, topic, group, str(seconds), str(turns), *servers)
    found = [Found(**one) for one in json.loads(text)]
    assert len(found) == len(servers), "an answer for each server"
    return found


async def _output(*command: str) -> str:
    """The last line that it prints."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, limit=1 << 24
    )
    try:
        found, faults = await asyncio.wait_for(process.communicate(), PROCESS_S_MAX)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ClientError(f"{command[0]} took more than {PROCESS_S_MAX} s") from None
    if process.returncode or not found.strip():
        raise ClientError(f"{' '.join(command)}: {faults.decode(errors='replace')[-2000:]}")
    return found.decode().strip().splitlines()[-1]
