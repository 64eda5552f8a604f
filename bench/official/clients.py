"""The official clients' programs: installed, run through several servers in turn; and their answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

from bench.processes import ROOT, last_line
from bench.report import Report
from tests.conformance.run import SuiteError, install, missing_tools

LANGUAGES: Final = ("java", "python")
PROCESS_S_MAX: Final = 120
PROGRAMS: Final = {"python": "official.py", "java": "Official"}
REQUIREMENTS: Final = {"python": "requirements.lock", "java": "pom.xml"}
Work = Literal["send", "receive"]


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """One server's part. rates: messages a second, by turn, 0 where there were none; times: seconds of some
    calls of the last round; count: all messages, those of the warm-up, too."""

    rates: list[float]
    times: list[float]
    count: int
    failures: int

    @property
    def rate(self) -> float:
        """The median of the rounds with messages; 0 where there was none."""
        rates = [rate for rate in self.rates if rate]
        return median(rates) if rates else 0.0

    def ratio_to(self, other: ClientFigures) -> float | None:
        """The median over the rounds in which both had messages; None where there was no such round."""
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
) -> list[ClientFigures]:
    """The servers in turn, each `turns` times for `seconds`. ProcessError."""
    arguments = (work, topic, group, str(seconds), str(turns), *servers)
    text = await last_line(*command, *arguments, timeout_s=PROCESS_S_MAX)
    found = [ClientFigures(**one) for one in json.loads(text)]
    assert len(found) == len(servers), "an answer for each server"
    return found
