"""The nameserver's daemon: creates and connects all parts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from trovemq_daemon.addresses import Address, warn_of_open
from trovemq_daemon.grpc_server import GrpcServer
from trovemq_daemon.lifecycle import Stop, run_daemon
from trovemq_daemon.limits import raise_descriptor_limit
from trovemq_daemon.logging import get_logger
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.ops_http import OpsHttp, Readiness
from trovemq_daemon.remoting.server import FIRST_BYTE, OFF, RemotingServer
from trovemq_daemon.tls_reload import TlsReload
from trovemq_daemon.tls_settings import bind_tls
from trovemq_nameserver.access import NameserverAccess
from trovemq_nameserver.metrics import RegistryCollector
from trovemq_nameserver.registration import RegistrationService
from trovemq_nameserver.remoting import RemotingRoutes
from trovemq_nameserver.service import Registry, RouteService
from trovemq_nameserver.settings import NameserverSettings

DISTRIBUTION: Final = "trovemq-nameserver"
DRAIN_TIME_MAX_S: Final = 1.0


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def installed_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


class NameserverApp:
    """One nameserver in the running event loop: `start()`, then `stop()`."""

    def __init__(self, settings: NameserverSettings) -> None:
        self._settings = settings
        self._address: Address = settings.listen_address
        self.tls_address: Address | None = None
        """The address of the services by TLS, once it is bound."""
        self._serving = False
        self.registry = Registry(settings, settings.watchers_max, monotonic_ms)
        self._metrics = new_registry(installed_version())
        self._access = (
            NameserverAccess(Path(settings.users_file), monotonic_ms) if settings.users_file else None
        )
        self._metrics.register(RegistryCollector(self.registry, self._access))
        rpc_metrics = RpcMetrics(self._metrics, cluster="", node_type="nameserver", node_id=settings.listen)
        rpc_metrics.slow.set_limit(settings.slow_request_ms)
        check = None if self._access is None else self._access.handler
        self._grpc = GrpcServer(settings.grpc_limits(), rpc_metrics, check)
        if settings.remoting_enable:
            texts = {one.name: str(getattr(settings, one.name)) for one in fields(settings)}
            remoting = RemotingServer(rpc_metrics, RemotingRoutes(self.registry, texts).handlers)
            self._grpc.add_guest(FIRST_BYTE, remoting.accept)
        else:
            self._grpc.explain(FIRST_BYTE, OFF)
        readiness = Readiness()
        readiness.add("grpc", lambda: "" if self._serving else "not serving")
        self._http = OpsHttp(self._metrics, readiness, name="TroveMQ: a nameserver")
        self._tls = TlsReload(settings, self._grpc, self._http)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> tuple[Address, Address | None]:
        """Listens and serves. Returns the bound addresses of gRPC and HTTP (`tls_address` is the third).
        Raises AddressInUseError, and SettingsError for files of TLS or users.
        """
        if self._access is not None:
            await self._access.load()
            self._access.add_to(self._grpc.server)
        route_service = RouteService(
            self.registry, name=lambda: str(self._address), version=installed_version()
        )
        route_service.add_to(self._grpc.server)
        RegistrationService(self.registry, self._settings.heartbeat_size_max).add_to(self._grpc.server)
        self._address = self._grpc.bind(self._settings.listen_address)
        self.tls_address = await bind_tls(
            self._grpc, self._settings, self._settings.listen_address, self._address
        )
        http = self._settings.http_address
        http = await self._http.start(http, self._settings.http_tls_files) if http is not None else None
        await self._grpc.start()
        self._tasks.append(asyncio.create_task(self.registry.run_expiry(), name="expiry"))
        self._tasks.append(asyncio.create_task(self._tls.run(), name="tls"))
        if self._access is not None:
            reading = self._access.run(self._settings.files_reload_interval_ms)
            self._tasks.append(asyncio.create_task(reading, name="users"))
        await self._grpc.set_serving(True)
        self._serving = True
        return self._address, http

    async def stop(self) -> None:
        self._serving = False
        self.registry.watchers.close()
        await self._grpc.stop(DRAIN_TIME_MAX_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.stop()


async def serve(settings: NameserverSettings, stop: Stop) -> None:
    """Serves until `stop`."""
    app = NameserverApp(settings)
    try:
        address, http = await app.start()
        get_logger().info(
            "nameserver.started", listen=address, tls=app.tls_address or "off", http=http or "off"
        )
        services = {"listen": address, "tls_listen": app.tls_address}
        warn_of_open(({} if settings.users_file else services) | {"http": http})
        await stop.wait()
        get_logger().info("nameserver.stopping", reason=stop.reason)
    finally:
        await app.stop()


def run(settings: NameserverSettings) -> int:
    """Runs the daemon until it ends. Returns the exit code."""
    raise_descriptor_limit()
    return run_daemon(lambda stop: serve(settings, stop))
