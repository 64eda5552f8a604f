"""A daemon of `trovemq.testing` has its ports until it is closed, also while it restarts."""

from __future__ import annotations

import pytest

from trovemq._common import loopback_ports
from trovemq.testing import DaemonProcess, free_port


def test_the_port_of_a_daemon_that_restarted_was_given_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process listens on it then. The daemon here has not started yet, which is the same."""
    ports = {free_port() for _ in range(3)}
    while len(ports) < 3:
        ports.add(free_port())
    monkeypatch.setattr(loopback_ports, "PORTS", sorted(ports))
    daemon = DaemonProcess("trovemq_broker")
    try:
        (other,) = ports - {daemon.port, daemon.http_port}
        assert {free_port() for _ in range(20)} == {other}
    finally:
        daemon.close()
