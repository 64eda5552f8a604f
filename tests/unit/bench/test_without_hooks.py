"""The code that spans are compared with: all statements about them are gone, and the rest is as it was."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from bench import without_hooks
from trovemq import producer

ROOT = Path(__file__).resolve().parents[3]


def test_a_producer_without_hooks_has_none_of_their_names() -> None:
    plain = without_hooks.load(*without_hooks.OF_PRODUCER).Producer
    assert inspect.signature(plain.send) == inspect.signature(producer.Producer.send)
    for name in ("send", "send_nowait", "send_oneway", "send_batch"):
        assert "_tracing" in getattr(producer.Producer, name).__code__.co_names
        assert "_tracing" not in getattr(plain, name).__code__.co_names
    assert sys.modules["trovemq.producer"] is producer


def test_a_statement_more_or_less_is_noticed() -> None:
    name, count = without_hooks.OF_PRODUCER
    with pytest.raises(AssertionError, match=f"has {count} statements about spans"):
        without_hooks.load(name, count + 1)


@pytest.mark.slow
def test_the_modules_of_a_broker_without_hooks_fit_together() -> None:
    command = [sys.executable, "-m", "bench.without_hooks", "--help"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
