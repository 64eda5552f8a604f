"""Writes Grafana's dashboards and Prometheus' alert rules from the table of metrics: `make docs`.

`--check` only compares. Exit code 1 where a file differs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.monitoring.alerts import cases, rules
from deploy.monitoring.dashboards import dashboards
from deploy.monitoring.metric_table import ROOT, read_metrics

NOTE: Final = "# Made by `make docs` from deploy/monitoring; change the tables there, not this file.\n"
RULES: Final = "alerts.yml"


def files() -> dict[Path, str]:
    """Every file with its text, below `deploy/`."""
    texts = {
        Path("grafana/dashboards") / f"{name}.json": json.dumps(dashboard, indent=1) + "\n"
        for name, dashboard in dashboards(read_metrics()).items()
    }
    return {
        **texts,
        Path("prometheus") / RULES: _as_yaml(rules()),
        Path("prometheus") / "alerts-test.yml": _as_yaml(cases(RULES)),
    }


def _as_yaml(document: dict[str, Any]) -> str:
    return NOTE + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: list[str]) -> int:
    """Writes or compares; the exit code."""
    stale = []
    for name, text in files().items():
        path = ROOT / "deploy" / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print("run `make docs`: other than their table:", *stale)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
