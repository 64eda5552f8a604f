"""h2spec's strict cases against our server, read from its JUnit report."""

import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Final

from tests.interop_grpc.peers import BUILD, Certificates, Python, running
from trovemq.testing import free_port

H2SPEC_S_MAX: Final = 400


@dataclass
class Report:
    """The findings of h2spec."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def run_h2spec(tls: Certificates | None = None) -> Report:
    port, junit = free_port(), BUILD / "h2spec.xml"
    junit.unlink(missing_ok=True)
    options = ["--strict", "-o", "5", "-p", str(port), "-j", str(junit), *(["-t", "-k"] if tls else [])]
    with running(Python("native").server(port, tls), port):
        subprocess.run(
            [str(BUILD / "h2spec"), *options], stdout=subprocess.DEVNULL, timeout=H2SPEC_S_MAX, check=False
        )
    report = Report()
    for suite in ET.parse(junit).getroot().iter("testsuite"):
        for case in suite.iter("testcase"):
            name = f"{case.get('package', suite.get('name'))}: {case.get('classname')}"
            if case.find("failure") is not None or case.find("error") is not None:
                report.failed.append(name)
            elif case.find("skipped") is not None:
                report.skipped.append(name)
            else:
                report.passed += 1
    return report
