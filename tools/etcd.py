"""Builds an etcd of a later version than the system's package, from its published Go modules.

    python -m tools.etcd build/etcd-3.6 3.6.16

writes the program `etcd` there. Needs Go, and minutes of processor time at the first build.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

MAIN = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""
MODULE = "module etcd\n\ngo 1.24\n\nrequire go.etcd.io/etcd/server/v3 v{version}\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Builds etcd from its Go modules.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("version", help="such as 3.6.16")
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+\.\d+", given.version):
        parser.error(f"{given.version} is not a version such as 3.6.16")
    if shutil.which("go") is None:
        parser.error("go is not in PATH")
    program = given.directory.absolute() / "etcd"
    with tempfile.TemporaryDirectory() as name:
        sources = Path(name)
        (sources / "main.go").write_text(MAIN)
        (sources / "go.mod").write_text(MODULE.format(version=given.version))
        for line in (["mod", "tidy"], ["build", "-trimpath", "-ldflags", "-s -w", "-o", str(program), "."]):
            if (code := subprocess.run(["go", *line], cwd=sources, check=False).returncode) != 0:
                return code
    return subprocess.run([str(program), "--version"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
