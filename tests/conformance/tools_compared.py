"""What `mqadmin` 5.4.0 prints about our broker and about RocketMQ's, each on a copy of one golden store.

    python -m tests.conformance.tools_compared          the differences, command by command

Each broker registers at a separate RocketMQ nameserver, so that the commands are the same. Figures that no
two runs have in common are replaced before: addresses, times, rates, places of the disk. A difference that
is known and explained is in KNOWN, by its command and its line; the exit code is 0 if there is no other
one. Without Java and Maven it does nothing, and says so.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.conformance.rocketmq_peer import RocketMq, why_missing
from tests.conformance.run import BUILD, HERE, add_harness, install
from tests.support.golden import load_manifest, unpack
from trovemq.testing import BrokerProcess

STORE: Final = "small"
NAME: Final = "broker-a"
RUN_S_MAX: Final = 240
TOPICS: Final = ("AlfaOrders", "AlfaTrans")
GROUPS: Final = ("Alfa-group", "Alfa-lite")
VOLATILE: Final = (
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(,\d+)?", "TIME"),
    (r"[\w/.-]*/msgbodys/", "BODIES/"),
    (r"(V5_4_0 +)\d+\.\d+(\(\S+ +)\d+\.\d+(\(.*?) \S+ +\d\.\d{4} ", r"\1RATE\2RATE\3 HOURS DISK "),
    (r"^(DefaultCluster +broker-a +\d+ +\d+) +\d+ +\d+", r"\1 TODAY"),
    (r"(RATE\(\S+\)) +\d+-\d+\(\S+, \S+, \S+\)", r"\1 TIMERS"),
    (r"\s+", " "),
)
READ_SETTINGS: Final = (
    *("brokerName", "brokerClusterName", "brokerId", "brokerIP1", "listenPort", "namesrvAddr"),
    *("fileReservedTime", "flushDiskType", "brokerRole", "autoCreateTopicEnable", "deleteWhen"),
)
"""The settings that tools read: compared with their values, and never in KNOWN."""


class Known(NamedTuple):
    """Lines of some commands, with their sign, `+` for ours alone; and why they differ."""

    commands: str
    lines: str
    why: str


KNOWN: Final = (
    Known(
        r"topicList( -c)?",
        r"\+ (DefaultCluster )?rmq_sys_trovemq_delivery",
        "a system topic of ours",
    ),
    Known(
        r"topicList( -c)?",
        r"- (DefaultCluster )?TRANS_CHECK_MAX_TIME_TOPIC",
        "RocketMQ makes it when it gives up a half of a transaction; ours are kept until their checks end",
    ),
    Known(
        r"consumerProgress( -g \S+)?",
        r"\+ %RETRY%(\S+) broker-a 0 \d+ 0 \d+ 0 N/A|[+-] Consume Diff Total: \d+"
        r"|[+-] \S+ 0 OFFLINE 0 \d+",
        "we count messages of a retry topic of which the group has read none yet",
    ),
    Known(
        r"brokerConsumeStats .*",
        r"[+-] RMQ_SYS_TRANS_HALF_TOPIC CID_RMQ_SYS_TRANS .*|[+-] Diff Total: \d+",
        "RocketMQ appends halves of transactions again while it runs",
    ),
    Known(r"brokerStatus .*", r"\+ scheduleMessageOffset_\d+", "we have each delay level, used or not"),
    Known(r"brokerStatus .*", r"\+ getTransferedTps", "the older spelling, which the exporter reads"),
    Known(
        r"brokerStatus .*", r"\+ brokerVersion", "RocketMQ 5.4.0 has its text alone; the exporter reads both"
    ),
    Known(
        r"brokerStatus .*",
        r"\+ remainHowManyDataToCommit",
        "RocketMQ has it with a transient store pool alone; clusterList reads it",
    ),
    Known(
        r"brokerStatus .*", r"- commitLogDiskRatio_/.*", "RocketMQ has one more for each folder of its log"
    ),
    Known(r"getBrokerConfig .*", r"\+ [a-z]+(_[a-z0-9]+)*", "our settings, by our names"),
    Known(
        r"getBrokerConfig .*",
        rf"- (?!({'|'.join(READ_SETTINGS)})\b)\w+",
        "settings of RocketMQ that no tool reads",
    ),
)
LINES_MAX: Final = 40
NAMES_ALONE: Final = ("brokerStatus", "getBrokerConfig")
"""Their values differ in each run, except READ_SETTINGS."""


def commands(manifest: Mapping[str, object]) -> list[list[str]]:
    """Commands that only read, with names and ids of the store."""
    messages = manifest["messages"]
    assert isinstance(messages, list)
    one = next(m for m in messages if m["topic"] == TOPICS[0] and m["keys"] and m["uniqKey"])
    key = one["keys"].split()[0]
    made: list[list[str]] = [
        ["topicList"],
        ["topicList", "-c"],
        ["consumerProgress"],
        ["brokerConsumeStats", "-b", "BROKER"],
        ["brokerStatus", "-b", "BROKER"],
        ["getBrokerConfig", "-b", "BROKER"],
        ["producer", "-b", "BROKER"],
        ["consumerStatus", "-g", GROUPS[0]],
        *(["topicRoute", "-t", topic] for topic in TOPICS),
        *(["topicStatus", "-t", topic] for topic in TOPICS),
        ["topicClusterList", "-t", TOPICS[0]],
        *(["consumerProgress", "-g", group] for group in GROUPS),
        *(["getConsumerConfig", "-g", group] for group in GROUPS),
        ["consumerConnection", "-g", GROUPS[0]],
        ["statsAll", "-t", TOPICS[0]],
        ["queryMsgByKey", "-t", TOPICS[0], "-k", key],
        ["queryMsgByUniqueKey", "-t", TOPICS[0], "-i", one["uniqKey"]],
        ["queryMsgByOffset", "-t", TOPICS[0], "-b", NAME, "-i", str(one["queueId"]), "-o", "0"],
        ["queryCq", "-t", TOPICS[0], "-b", "BROKER", "-q", str(one["queueId"]), "-i", "0", "-c", "3"],
        ["printMsg", "-t", TOPICS[0]],
        ["clusterList"],
        ["clusterList", "-m"],
    ]
    return made


def outputs(
    command: Sequence[str], wanted: Sequence[Sequence[str]], real: RocketMq, broker: str
) -> dict[str, str]:
    """By command. CalledProcessError, TimeoutExpired."""
    lines = []
    for words in wanted:
        here = [broker if word == "BROKER" else word for word in words]
        lines.append("\t".join([*here, "-n", real.nameserver]))
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=RUN_S_MAX, check=True
    )
    printed = [part.partition("\n")[2] for part in done.stdout.split("\x01")[1:]]
    return {" ".join(words): text for words, text in zip(wanted, printed, strict=True)}


def normalised(name: str, text: str) -> list[str]:
    """The lines of a command's output, sorted: the order of several comes from hash tables."""
    lines = []
    for line in text.splitlines():
        fixed = line
        for pattern, instead in VOLATILE:
            fixed = re.sub(pattern, instead, fixed)
        if fixed.strip():
            lines.append(fixed.strip())
    if name in NAMES_ALONE:
        lines = [line if _is_read(line) else re.split(r"[ =:]", line)[0] for line in lines]
    return sorted(lines)


def _is_read(line: str) -> bool:
    """A setting whose value tools read, and both brokers have."""
    name = re.split(r"[ =:]", line)[0]
    return name in READ_SETTINGS and name != "listenPort"


def reason(command: str, line: str) -> str:
    """Why this line differs; "" where nothing explains it."""
    known = (one for one in KNOWN if re.fullmatch(one.commands, command))
    return next((one.why for one in known if re.fullmatch(one.lines, line)), "")


def compare(folder: Path) -> dict[str, list[str]]:
    """The lines that differ, by command."""
    manifest = load_manifest(STORE)
    suite = BUILD / "own" / "mqadmin"
    copytree(HERE / "mqadmin", suite, dirs_exist_ok=True)
    add_harness("mqadmin", HERE, suite)
    command = [*install("mqadmin", suite)[:-1], "Outputs"]
    wanted = commands(manifest)
    stores = {side: unpack(STORE, folder / side) for side in ("ours", "theirs")}
    with ExitStack() as processes:
        beside = {side: RocketMq(processes, folder / f"{side}-home") for side in stores}
        for real in beside.values():
            real.start_nameserver()
        given = dict(manifest["brokerConfig"]).items()
        config = {name: value for name, value in given if "ize" in name or "Num" in name}
        config["fileReservedTime"] = 876_000
        settings = {**config, "flushDiskType": "SYNC_FLUSH"}
        their_address = beside["theirs"].start_broker(NAME, stores["theirs"], settings)
        ours = BrokerProcess(
            name=NAME,
            store=stores["ours"],
            cluster="DefaultCluster",
            remoting_enable=True,
            rocketmq_nameserver=beside["ours"].nameserver,
            ready_timeout=180,
            **config,
        )
        processes.enter_context(ours)
        mine = outputs(command, wanted, beside["ours"], ours.address)
        other = outputs(command, wanted, beside["theirs"], their_address)
    found = {}
    for name in mine:
        words = name.split()[0]
        lines = difflib.ndiff(normalised(words, other[name]), normalised(words, mine[name]))
        found[name] = [line for line in lines if line[0] in "+-"]
    return found


def main() -> int:
    if missing := why_missing():
        print(f"skipped: {missing}")
        return 0
    with TemporaryDirectory(prefix="tools-compared-") as folder:
        found = compare(Path(folder))
    unknown = 0
    for name, lines in found.items():
        reasons = {line: reason(name, line) for line in lines}
        strange = [line for line in lines if not reasons[line]]
        unknown += len(strange)
        print(f"{'DIFFERS' if strange else 'known  ' if lines else 'same   '} {name}")
        print("".join(f"    known: {why}\n" for why in dict.fromkeys(filter(None, reasons.values()))), end="")
        print("".join(f"    {line[:200]}\n" for line in strange[:LINES_MAX]), end="")
    return min(unknown, 1)


if __name__ == "__main__":
    sys.exit(main())
