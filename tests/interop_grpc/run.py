"""Runs gRPC's interoperability cases between our package and the others, and h2spec against our server.

    make interop-grpc                      everything; writes docs/reports/rpc-interop.md
    make interop-grpc ARGS="grpc-go"       one peer; writes nothing

Peers: grpcio, and grpc-go and grpc-java where Go, and Java with Maven, are installed. The exit code is 0 when
every case passed that the peer has.
"""

import argparse
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop_grpc.h2spec import Report, run_h2spec
from tests.interop_grpc.peers import (
    Certificates,
    Go,
    Java,
    Peer,
    Python,
    build_go,
    build_java,
    run_case,
    running,
    test_certificates,
)
from tests.interop_grpc.programs.cases import CASES
from trovemq.testing import free_port

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reports" / "rpc-interop.md"
NATIVE: Final = Python("native")
PEERS: Final[dict[str, Peer]] = {"grpcio": Python("grpcio"), "grpc-go": Go(), "grpc-java": Java()}

_COMPRESSED_REQUEST = {"client_compressed_unary", "client_compressed_streaming"}
_COMPRESSED_RESPONSE = {"server_compressed_unary", "server_compressed_streaming"}
_NO_PROBE = {f"{case}_noprobe" for case in _COMPRESSED_REQUEST}
_OURS_ONLY = {"concurrent_large_unary"}

# The cases that a peer does not have, and why.
NOT_IN_SERVER: Final[dict[str, tuple[set[str], str]]] = {
    "grpcio": (_COMPRESSED_REQUEST, "it does not say whether a request was compressed"),
    "grpc-go": (_COMPRESSED_REQUEST | _COMPRESSED_RESPONSE | _NO_PROBE, "its test server has no compression"),
    "grpc-java": (
        _COMPRESSED_REQUEST | {"server_compressed_streaming"},
        "it does not say whether a request was compressed, and its test server compresses no streams",
    ),
}
NOT_IN_CLIENT: Final[dict[str, tuple[set[str], str]]] = {
    "grpcio": (
        {"client_compressed_streaming", "client_compressed_streaming_noprobe"},
        "it compresses all messages of a stream or none",
    ),
    "grpc-go": (
        _COMPRESSED_REQUEST | _COMPRESSED_RESPONSE | _NO_PROBE | _OURS_ONLY | {"rpc_soak", "channel_soak"},
        "its test client does not have them",
    ),
    "grpc-java": (_OURS_ONLY, "its test client does not have it"),
}


@dataclass
class Pair:
    """One client against one server: case -> why it failed, None where it passed."""

    client: str
    server: str
    tls: bool
    results: dict[str, str | None]
    left_out: set[str]
    why_left_out: str

    @property
    def failed(self) -> dict[str, str]:
        return {case: why for case, why in self.results.items() if why is not None}


def run_pair(client: Peer, server: Peer, tls: Certificates | None, cases: Iterable[str]) -> Pair:
    other, table = (client, NOT_IN_CLIENT) if server is NATIVE else (server, NOT_IN_SERVER)
    left_out, why = table[other.name]
    port = free_port()
    chosen = [case for case in cases if case not in left_out]
    with running(server.server(port, tls), port), ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda case: run_case(client.client(port, case, tls)), chosen))
    pair = Pair(client.name, server.name, bool(tls), dict(zip(chosen, results, strict=True)), left_out, why)
    print(_row(pair), flush=True)
    for case, reason in pair.failed.items():
        print(f"    {case}: {reason}", flush=True)
    return pair


def _row(pair: Pair) -> str:
    passed = len(pair.results) - len(pair.failed)
    transport = "TLS" if pair.tls else "plain"
    return f"| {pair.client} | {pair.server} | {transport} | {passed} of {len(pair.results)} |"


def _page(pairs: list[Pair], reports: dict[str, Report]) -> str:
    lines = [
        "# Interoperability of trovemq_rpc",
        "",
        "Written by `make interop-grpc`; the versions are pinned in `tests/interop_grpc/go/go.mod`,",
        "`tests/interop_grpc/java/pom.xml` and the lock files. The cases are gRPC's own",
        "(`doc/interop-test-descriptions.md`), without those that need a cloud, credentials, a caching proxy",
        "or gRPC's own load balancer: " + ", ".join(f"`{case}`" for case in CASES) + ".",
        "",
        "| client | server | transport | cases passed |",
        "| --- | --- | --- | --- |",
        *(_row(pair) for pair in pairs),
        "",
    ]
    failures = [(pair, case, why) for pair in pairs for case, why in pair.failed.items()]
    if failures:
        lines += ["## Failed", ""]
        lines += [f"- {pair.client} -> {pair.server}, `{case}`: {why}" for pair, case, why in failures] + [""]
    lines += ["## Cases that a peer does not have", ""]
    for role, table in (("server", NOT_IN_SERVER), ("client", NOT_IN_CLIENT)):
        for name, (cases, why) in table.items():
            lines.append(f"- {name} as {role}: {', '.join(f'`{case}`' for case in sorted(cases))} ({why})")
    lines += [
        "",
        "## h2spec 2.2.1, strict",
        "",
        "| transport | passed | failed | skipped |",
        "| --- | --- | --- | --- |",
    ]
    for name, report in reports.items():
        lines.append(f"| {name} | {report.passed} | {len(report.failed)} | {len(report.skipped)} |")
    lines += [
        f"- {kind}: {case}"
        for report in reports.values()
        for kind, cases in (("failed", report.failed), ("skipped", report.skipped))
        for case in cases
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("peers", nargs="*", choices=[[], *PEERS, "h2spec"], help="default: all")
    parser.add_argument("--case", action="append", choices=list(CASES))
    chosen = parser.parse_args()
    wanted = chosen.peers or [*PEERS, "h2spec"]
    missing = {"grpc-go": build_go(), "grpc-java": build_java(), "grpcio": None}
    missing["h2spec"] = missing["grpc-go"]
    certificates = None if missing["grpc-go"] else test_certificates()
    begun, pairs, reports = time.monotonic(), [], {}
    for name in wanted:
        if missing[name]:
            print(f"{name}: left out, {missing[name]}", flush=True)
        elif name == "h2spec":
            reports = {"plain": run_h2spec(), "TLS": run_h2spec(certificates)}
            for transport, report in reports.items():
                print(f"h2spec, {transport}: {report}")
        else:
            for tls in (None, certificates) if certificates else (None,):
                pairs.append(run_pair(PEERS[name], NATIVE, tls, chosen.case or CASES))
                pairs.append(run_pair(NATIVE, PEERS[name], tls, chosen.case or CASES))
    print(f"{time.monotonic() - begun:.0f} s")
    if not chosen.peers and not chosen.case and not any(missing.values()):
        PAGE.write_text(_page(pairs, reports))
    failed = any(pair.failed for pair in pairs) or any(r.failed or r.skipped for r in reports.values())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
