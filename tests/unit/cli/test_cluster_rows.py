"""The rows of `trovemq cluster local`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

from trovemq.cli.clusters import _Notes, _Printing
from trovemq.cli.local.members import Member, Plan
from trovemq.cli.options import Format, SharedOptions
from trovemq.cli.output import Output
from trovemq.cli.session import Session

NAMES = Member("nameserver", "nameserver", None, 1, 2)
BROKER = Member("broker", "broker-1", "broker-1", 3, 4)


@contextmanager
def printing(stdout: IO[bytes], format_: Format) -> Iterator[_Printing]:
    output = Output(format_, stdout=stdout, stderr=io.StringIO(), terminal=False)
    session = Session(options=SharedOptions(), timeout_s=1.0, output=output)
    with closing(output):
        yield _Printing(session, Plan(Path("/c"), [NAMES, BROKER]), _Notes(output.objects))


def test_the_table_had_two_rows_of_a_broker_that_was_started_twice() -> None:
    stdout = io.BytesIO()
    with printing(stdout, Format.TABLE) as shown:
        for member, pid in ((NAMES, 100), (BROKER, 101), (BROKER, 102)):
            shown.started(member, pid)
        shown.all_ready()
    rows = [line.split() for line in stdout.getvalue().decode().splitlines()[1:]]
    assert [(row[1], row[2]) for row in rows] == [("nameserver", "100"), ("broker-1", "102")]
