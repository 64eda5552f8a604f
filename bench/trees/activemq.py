"""ActiveMQ with KahaDB, as Debian packages it, beside which the broker is measured.

It is started with a configuration for this: STOMP on a free loopback port, KahaDB in a directory of the
benchmark with a sync for every write (its default), no other connector, no JMX. It is stopped by its process
id. Where it is not installed, a note says so.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
import zipfile
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.trees.stomp import StompClient, StompError
from trovemq.testing import free_port

HOME = Path("/usr/share/activemq")
LAUNCHER = HOME / "bin/activemq.jar"
BROKER_JAR = HOME / "lib/activemq-broker.jar"
HEAP = "512m"
START_S_MAX = 60.0
STOP_S_MAX = 20.0
BROWSE_PAGE_SIZE = 1_000_000
"""Messages that a browse may see; 400 by default, so that it would not find later ones."""

CONFIGURATION = """\
<beans xmlns="http://www.springframework.org/schema/beans"
       xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
       xsi:schemaLocation="http://www.springframework.org/schema/beans
                           http://www.springframework.org/schema/beans/spring-beans.xsd
                           http://activemq.apache.org/schema/core
                           http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" useJmx="false"
          advisorySupport="false" dataDirectory="{data}">
    <destinationPolicy><policyMap><policyEntries>
      <policyEntry queue="&gt;" maxBrowsePageSize="{page}" producerFlowControl="false"/>
    </policyEntries></policyMap></destinationPolicy>
    <persistenceAdapter>
      <kahaDB directory="{data}/kahadb" journalDiskSyncStrategy="always"/>
    </persistenceAdapter>
    <systemUsage><systemUsage>
      <memoryUsage><memoryUsage limit="320 mb"/></memoryUsage>
      <storeUsage><storeUsage limit="8 gb"/></storeUsage>
      <tempUsage><tempUsage limit="256 mb"/></tempUsage>
    </systemUsage></systemUsage>
    <transportConnectors>
      <transportConnector name="stomp" uri="stomp://127.0.0.1:{port}"/>
    </transportConnectors>
  </broker>
</beans>
"""
LOGGING = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.SimpleLayout
"""


def missing() -> str:
    """Why it cannot be measured, or an empty text."""
    if not LAUNCHER.exists():
        return "ActiveMQ is not installed (Debian's package activemq)"
    if shutil.which("java") is None:
        return "there is no Java for ActiveMQ"
    return ""


def version() -> str:
    """The version that its archive names."""
    with zipfile.ZipFile(BROKER_JAR) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
    found = re.search(r"^Implementation-Version: *(\S+)", manifest, re.MULTILINE)
    return found.group(1) if found else "of unknown version"


class ActiveMQ:
    """A running one. The directory is made, and stays."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory.resolve()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        data = self._directory / "data"
        data.mkdir(parents=True)
        configuration = self._directory / "activemq.xml"
        configuration.write_text(CONFIGURATION.format(data=data, port=self.port, page=BROWSE_PAGE_SIZE))
        logging = self._directory / "log4j.properties"
        logging.write_text(LOGGING)
        properties = {
            "activemq.home": HOME,
            "activemq.base": self._directory,
            "activemq.data": data,
            "activemq.conf": self._directory,
            "log4j.configuration": f"file:{logging}",
            "java.io.tmpdir": self._directory,
        }
        with (self._directory / "out").open("wb") as out:
            self._process = subprocess.Popen(
                ["java", f"-Xms{HEAP}", f"-Xmx{HEAP}"]
                + [f"-D{name}={value}" for name, value in properties.items()]
                + ["-jar", str(LAUNCHER), "start", f"xbean:file:{configuration}"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def connect(self) -> StompClient:
        """Waits until it takes connections. StompError where it does not start."""
        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                return await StompClient.connect(self.port)
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self._directory / "out").read_text(errors="replace")[-2_000:]
                    raise StompError(f"ActiveMQ did not start: {said}") from None
            await asyncio.sleep(0.1)

    @property
    def stored_bytes(self) -> tuple[int, int]:
        """On disk: KahaDB's journal, and its index with its redo file."""
        files = {
            path.name: path.stat().st_blocks * 512 for path in (self._directory / "data/kahadb").iterdir()
        }
        journal = sum(size for name, size in files.items() if re.fullmatch(r"db-\d+\.log", name))
        return journal, sum(size for name, size in files.items() if name in ("db.data", "db.redo"))
