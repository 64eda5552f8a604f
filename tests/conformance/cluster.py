"""The brokers that official clients run against: one, or several with a nameserver."""

from __future__ import annotations

import json
import re
import secrets
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from trovemq._net.certificates import HOSTS_DEFAULT, make_authority, make_server
from trovemq.testing import BrokerProcess, NameserverProcess, free_port

ROUTES_S_MAX = 30


class Cluster:
    """Brokers, and a nameserver where there are several. They end with `processes`.

    Args:
        processes: Ends them.
        folder: Certificates are made in it.
        several: Whether there may be more than one. `address` is the nameserver's then.
        tls: They listen by TLS, too, and `endpoints` has these addresses.
        authentication: They know the user `admin`, whose keys are in `admin`, as variables.
    """

    def __init__(
        self,
        processes: ExitStack,
        folder: Path,
        *,
        several: bool,
        tls: bool = False,
        authentication: bool = False,
    ) -> None:
        self._processes = processes
        self.brokers: list[BrokerProcess] = []
        self.endpoints: list[str] = []
        self.trusted: dict[str, str] = {}
        self.admin = _authentication() if authentication else {}
        self._credentials = ""
        if authentication:
            self._credentials = _credentials_file(folder, self.admin)
        self._files: list[str] = []
        if tls:
            self._files, self.trusted = make_certificates(folder / "certificates")
        self._nameservers: list[NameserverProcess | str] = []
        self.address = ""
        if several:
            at = f"127.0.0.1:{free_port()}"
            arguments = ["--tls-listen", at, *self._files] if tls else []
            nameserver = processes.enter_context(NameserverProcess(arguments=arguments))
            self._nameservers.append(at if tls else nameserver)
            self.address = nameserver.address

    def add(self, name: str, config_owner: str = "") -> BrokerProcess:
        """Starts one more."""
        by_tls = f"127.0.0.1:{free_port()}"
        arguments = ["--tls-listen", by_tls, *self._files] if self._files else []
        if self._files and self._nameservers:
            ca = self.trusted["NODE_EXTRA_CA_CERTS"]
            arguments += ["--set", "nameserver_tls=true", "--set", f"nameserver_tls_ca={ca}"]
        broker = BrokerProcess(
            name=name,
            nameservers=self._nameservers,
            arguments=arguments,
            environment=self.admin,
            transactionCheckInterval=3000,
            transactionTimeOut=10_000,
            config_owner=config_owner,
            config_credentials_file=self._credentials,
            remoting_enable=True,
        )
        self._processes.enter_context(broker)
        self.brokers.append(broker)
        self.endpoints.append(by_tls if self._files else broker.address)
        return broker


def _authentication() -> dict[str, str]:
    secret = secrets.token_urlsafe()
    return {
        "TROVEMQ_ACCESS_KEY": "admin",
        "TROVEMQ_SECRET_KEY": secret,
        "TROVEMQ_BROKER_INIT_AUTHENTICATION_USER": json.dumps({"username": "admin", "password": secret}),
        "TROVEMQ_BROKER_AUTHENTICATION_ENABLE": "true",
        "TROVEMQ_BROKER_AUTHORIZATION_ENABLE": "true",
    }


def _credentials_file(folder: Path, admin: Mapping[str, str]) -> str:
    """The keys with which a broker forwards calls of clients to the others."""
    file = folder / "admin.credentials"
    file.write_text(f"access_key={admin['TROVEMQ_ACCESS_KEY']}\nsecret_key={admin['TROVEMQ_SECRET_KEY']}\n")
    file.chmod(0o600)
    return str(file)


def make_certificates(folder: Path) -> tuple[list[str], dict[str, str]]:
    """A server's, as the broker's options, and variables by which clients trust it: one of Node.js, one of
    grpcio. The clients of Java and Go trust every server."""
    now = datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True)
    authority = make_authority("conformance", 1, now)
    pair = make_server(authority.certificate, authority.key, HOSTS_DEFAULT, 1, now)
    ca, certificate, key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
    for path, content in ((ca, authority.certificate), (certificate, pair.certificate), (key, pair.key)):
        path.write_bytes(content)
        path.chmod(0o600)
    trusted = dict.fromkeys(("NODE_EXTRA_CA_CERTS", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"), str(ca))
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)], {"SSL": "true", **trusted}


def metric(broker: BrokerProcess, name: str, label: str = "") -> float:
    """The sum of the series with this label; 0 if there are none."""
    with urllib.request.urlopen(f"http://{broker.http_address}/metrics", timeout=10) as answer:
        return sum_of(answer.read().decode(), name, label)


def sum_of(text: str, name: str, label: str = "") -> float:
    lines = re.findall(rf"^{re.escape(name)}({{.*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in lines if label in labels)


def await_routes(brokers: Sequence[BrokerProcess]) -> None:
    """Returns when each has the others in its routes, and no more. Raises RuntimeError."""
    end = time.monotonic() + ROUTES_S_MAX
    while any(metric(one, "trovemq_routes_brokers") != len(brokers) - 1 for one in brokers):
        if time.monotonic() > end:
            raise RuntimeError(f"the routes of {len(brokers)} brokers are not there in {ROUTES_S_MAX} s")
        time.sleep(0.1)
