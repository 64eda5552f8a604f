"""The broker's spans, if the settings ask for them; otherwise OpenTelemetry is not imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trovemq_daemon.errors import SettingsError

if TYPE_CHECKING:
    from trovemq_broker.server.monitoring.tracing import BrokerTracing


def open_tracing(endpoint: str, broker: str, version: str) -> BrokerTracing | None:
    """The exporter of spans; None without an endpoint. Raises SettingsError if the exporter is not
    installed."""
    if not endpoint:
        return None
    try:
        from trovemq_broker.server.monitoring.tracing import otlp_tracing
    except ImportError as error:
        raise SettingsError(f"otlp_endpoint needs pip install 'trovemq[otlp]': {error}") from error
    return otlp_tracing(endpoint, broker, version)
