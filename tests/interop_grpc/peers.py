"""The programs that speak gRPC with ours: how each is built, started as a server, and run for one case."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

HERE: Final = Path(__file__).resolve().parent
BUILD: Final = HERE.parents[1] / "build" / "interop-grpc"
OURS: Final = [sys.executable, "-m", "tests.interop_grpc.programs"]

STARTED_S_MAX: Final = 30
CASE_S_MAX: Final = 120
SERVER_NAME: Final = "foo.test.google.fr"  # of the certificate that gRPC's own tests use


@dataclass(frozen=True)
class Certificates:
    """PEM files: gRPC's own test authority, which grpc-java has built in, and a server's of it."""

    authority: Path
    chain: Path
    key: Path


class Peer(Protocol):
    """One implementation."""

    name: str

    def server(self, port: int, tls: Certificates | None) -> list[str]: ...

    def client(self, port: int, case: str, tls: Certificates | None) -> list[str]: ...


class Python:
    """The programs of this package, on its own transport or on grpcio."""

    def __init__(self, transport: str) -> None:
        self.name = {"native": "trovemq_rpc", "grpcio": "grpcio"}[transport]
        self._transport = ["--transport", transport]

    def server(self, port: int, tls: Certificates | None) -> list[str]:
        files = ["--tls-cert", str(tls.chain), "--tls-key", str(tls.key)] if tls else []
        return [*OURS, "server", "--listen", f"127.0.0.1:{port}", *files, *self._transport]

    def client(self, port: int, case: str, tls: Certificates | None) -> list[str]:
        trust = ["--ca-cert", str(tls.authority), "--server-name", SERVER_NAME] if tls else []
        return [*OURS, "client", "--server", f"127.0.0.1:{port}", "--case", case, *trust, *self._transport]


class Go:
    """google.golang.org/grpc/interop."""

    name = "grpc-go"

    def server(self, port: int, tls: Certificates | None) -> list[str]:
        files = ["--use_tls", f"--tls_cert_file={tls.chain}", f"--tls_key_file={tls.key}"] if tls else []
        return [str(BUILD / "server"), f"--port={port}", *files]

    def client(self, port: int, case: str, tls: Certificates | None) -> list[str]:
        trust = (
            [
                "--use_tls",
                "--use_test_ca",
                f"--ca_file={tls.authority}",
                f"--server_host_override={SERVER_NAME}",
            ]
            if tls
            else []
        )
        target = ["--server_host=127.0.0.1", f"--server_port={port}"]
        return [str(BUILD / "client"), *target, f"--test_case={case}", *trust]


class Java:
    """io.grpc:grpc-interop-testing. It has gRPC's test certificates built in."""

    name = "grpc-java"
    _package = "io.grpc.testing.integration"

    def _run(self, program: str) -> list[str]:
        return [
            "java",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{BUILD}/jars/*",
            f"{self._package}.{program}",
        ]

    def server(self, port: int, tls: Certificates | None) -> list[str]:
        return [*self._run("TestServiceServer"), f"--port={port}", f"--use_tls={str(bool(tls)).lower()}"]

    def client(self, port: int, case: str, tls: Certificates | None) -> list[str]:
        trust = ["--use_tls=true", "--use_test_ca=true", f"--server_host_override={SERVER_NAME}"]
        target = ["--server_host=127.0.0.1", f"--server_port={port}", f"--test_case={case}"]
        if case.endswith("_soak"):  # these cases do not test a busy machine
            target.append("--soak_per_iteration_max_acceptable_latency_ms=10000")
        return [*self._run("TestServiceClient"), *target, *(trust if tls else ["--use_tls=false"])]


def build_go() -> str | None:
    """Build grpc-go's programs and h2spec. Returns why not, where that is so."""
    if shutil.which("go") is None:
        return "go is not installed"
    BUILD.mkdir(parents=True, exist_ok=True)
    for package in (
        "google.golang.org/grpc/interop/client",
        "google.golang.org/grpc/interop/server",
        "github.com/summerwind/h2spec/cmd/h2spec",
    ):
        subprocess.run(["go", "build", "-o", f"{BUILD}/", package], cwd=HERE / "go", check=True)
    return None


def build_java() -> str | None:
    if shutil.which("java") is None or shutil.which("mvn") is None:
        return "java or mvn is not installed"
    jars = BUILD / "jars"
    if not jars.is_dir() or (HERE / "java" / "pom.xml").stat().st_mtime > jars.stat().st_mtime:
        maven = ["mvn", "-q", "-B", "-f", str(HERE / "java" / "pom.xml"), "dependency:copy-dependencies"]
        subprocess.run([*maven, f"-DoutputDirectory={jars}"], check=True)
        jars.touch()
    return None


def test_certificates() -> Certificates:
    """gRPC's test certificates, as the module of grpc-go brings them."""
    listed = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "google.golang.org/grpc"],
        cwd=HERE / "go", check=True, capture_output=True, text=True,
    )  # fmt: skip
    folder = Path(listed.stdout.strip()) / "testdata"
    return Certificates(folder / "ca.pem", folder / "server1.pem", folder / "server1.key")


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server, from when it accepts connections until the block ends."""
    log = BUILD / f"server-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_listening(process, port, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    log.unlink()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + STARTED_S_MAX
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"a server does not listen: {log.read_text()[-2000:]}")


def run_case(command: Sequence[str]) -> str | None:
    """Run a client. Returns why the case failed, None where it passed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CASE_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {CASE_S_MAX} s"
    if done.returncode == 0:
        return None
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    reported = [line for line in lines if "FAILED" in line or "rror" in line or "xception" in line] or lines
    return (reported[0] if reported else f"exit code {done.returncode}")[:200]
