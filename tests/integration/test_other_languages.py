"""The programs of the page for other languages: compiled as they are there, and run with a broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from trovemq.testing import BrokerProcess, free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "other-languages.md").read_text(encoding="utf-8")
GO_MODULE = ROOT / "tests" / "conformance" / "go"
TLS_ADDRESS = f"127.0.0.1:{free_port()}"
BUILD_SECONDS_MAX = 1_200
CARGO = """[package]
name = "page"
version = "0.1.0"
edition = "2021"

"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("RUN_INTEROP") != "1",
        reason="compiles two hundred crates, and Go's client: set RUN_INTEROP=1 (needs go, cargo, protoc)",
    ),
]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess(tls_listen=TLS_ADDRESS) as process:
        process.client.admin.create_topic("orders")
        yield process


def block(language: str) -> str:
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_go_program_sends_a_message(broker: BrokerProcess, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("no go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO_MODULE / name, tmp_path / name)
    (tmp_path / "main.go").write_text(block("go").replace("127.0.0.1:8082", TLS_ADDRESS))
    assert_sent(broker, ["go", "run", "."], tmp_path)


def test_the_rust_program_sends_a_message(broker: BrokerProcess, tmp_path: Path) -> None:
    if shutil.which("cargo") is None or not ("PROTOC" in os.environ or shutil.which("protoc")):
        pytest.skip("no cargo, or no protoc")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(CARGO + block("toml"))
    (tmp_path / "src" / "main.rs").write_text(block("rust").replace("127.0.0.1:8081", broker.address))
    assert_sent(broker, ["cargo", "run", "--quiet"], tmp_path)


def assert_sent(broker: BrokerProcess, command: list[str], directory: Path) -> None:
    """Whether the program prints the id of a message that a look-up of the key finds."""
    ran = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = broker.client.query("orders", "order-42").messages
    assert any(one.message_id in ran.stdout for one in found), ran.stdout
