"""Reads certificates that were replaced while the daemon runs, for later connections. Open ones keep theirs.

If a file cannot be used, or a key does not fit its certificate (another tool may be writing them), that is
logged, and the certificate stays until a file changes again.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from trovemq_daemon.errors import SettingsError
from trovemq_daemon.file_watch import FileWatch
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.logging import get_logger
from trovemq_daemon.ops_http import OpsHttp
from trovemq_daemon.tls import identity_for, log_identity
from trovemq_daemon.tls_settings import TlsSettings


class TlsReload:
    """Must be created before the files are read for the first time."""

    def __init__(self, settings: TlsSettings, server: GrpcServer, http: OpsHttp) -> None:
        self._settings: Final = settings
        self._server: Final = server
        self._http: Final = http
        files = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca, settings.tls_client_crl)
        self._files = FileWatch(Path(name) for name in files if name)

    async def run(self) -> None:
        """Checks the files until it is cancelled. Returns at once for a development certificate, which has no
        files."""
        if not self._settings.tls_certificate:
            return
        while True:
            await asyncio.sleep(self._settings.files_reload_interval_ms / 1000)
            if await asyncio.to_thread(self._files.changed):
                await self._read()

    async def _read(self) -> None:
        try:
            await asyncio.to_thread(self._replace)
        except (SettingsError, ssl.SSLError, OSError, ValueError) as error:
            get_logger().error("tls.files_not_read", message=str(error), kept="the earlier certificate")

    def _replace(self) -> None:
        settings = self._settings
        identity = identity_for(
            settings.tls_certificate,
            settings.tls_key,
            hosts=(),
            client_ca=settings.tls_client_ca,
            client_crl=settings.tls_client_crl,
        )
        self._server.replace_identity(identity)
        self._http.replace_tls(Path(settings.tls_certificate), Path(settings.tls_key))
        log_identity(identity)
