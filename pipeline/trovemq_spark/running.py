"""Runs one job: from its arguments on the command line to its exit code (report.py)."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from trovemq_spark import arguments as job_arguments
from trovemq_spark.arguments import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from trovemq_spark.job import Progress, Report

PROGRAM: Final = "trovemq-pipeline"
STOP_TIME_MAX_S: Final = 10
_BRIDGE_LOGGERS: Final = ("root", "py4j.clientserver", "py4j.java_gateway")

stopped_by: Final[list[int]] = []
"""Signals other than Ctrl-C that stopped this process."""
stuck: Final[list[SparkSession]] = []
"""Sessions that did not end in time: the process must not wait for them when it ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """The module of a job. With lazy_session it gets a function that makes the session, because it may have
    its answer before Java would have started."""

    module: str
    summary: str
    lazy_session: bool = False


class JobRun:
    """Runs one job from its arguments to its exit code."""

    def __init__(self, name: str, job: Job, master: str, debug: bool) -> None:
        self._name = name
        self._job = job
        self._master = master
        self._debug = debug
        self._advice = f"See `{PROGRAM} {name} --help`."
        self._session: SparkSession | None = None
        self._session_settings: Mapping[str, str] = {}

    def run(self, common: dict[str, str], settings: list[str]) -> int:
        self._log_to_stderr()
        try:
            work = self._prepare(common, settings)
        except UsageError as error:
            return usage_error(str(error), self._advice)
        except Exception as error:
            return self._fail(error)
        try:
            report = self._work(*work)
        except KeyboardInterrupt:
            sys.stderr.write("stopped\n")
            return stopped_code()
        except Exception as error:
            return self._fail(error)
        finally:
            self._stop()
        return self._show(report)

    def _log_to_stderr(self) -> None:
        handler = logging.StreamHandler(sys.stderr)
        if not self._debug:
            # Spark's bridge to Java logs every call that Ctrl-C interrupts to the root logger.
            handler.addFilter(lambda record: record.name not in _BRIDGE_LOGGERS)
        logging.basicConfig(handlers=[handler], level=logging.WARNING, format="%(name)s: %(message)s")

    def _prepare(self, common: dict[str, str], settings: list[str]) -> tuple[Callable[..., Report], Any]:
        """(the job's function, its arguments). Raises UsageError."""
        given = job_arguments.split_settings(settings)
        kind = job_arguments.arguments_class(self._job.module)
        job_arguments.check_names(self._name, job_arguments.fields_of(kind), common, given)
        module = importlib.import_module(self._job.module)
        values = job_arguments.build(kind, common, given)
        if not self._job.lazy_session:
            importlib.import_module("trovemq_spark.before_start").check_arguments(values)
        function: Callable[..., Report] = module.run
        # A job may need jars in the session from the start.
        settings_of = getattr(module, "session_settings", None)
        self._session_settings = {} if settings_of is None else settings_of(values)
        return function, values

    def _work(self, function: Callable[..., Report], values: Any) -> Report:
        with _progress() as progress:
            session = self._make_session if self._job.lazy_session else self._make_session()
            return function(session, values, progress)

    def _make_session(self) -> SparkSession:
        from trovemq_spark.session import make_session

        if self._session is None:
            name = f"{PROGRAM} {self._name}"
            self._session = make_session(name, master=self._master, settings=self._session_settings)
        return self._session

    def _stop(self) -> None:
        """Ends Spark, which may hang like one of its tasks; a second Ctrl-C stops the waiting."""
        if self._session is None:
            return
        previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
        stopping = threading.Thread(target=self._stop_session, daemon=True)
        stopping.start()
        stopping.join(STOP_TIME_MAX_S)
        if stopping.is_alive():
            stuck.append(self._session)
        signal.signal(signal.SIGINT, previous)

    def _stop_session(self) -> None:
        assert self._session is not None, "made"
        try:
            self._session.stop()
        except Exception:
            if self._debug:
                traceback.print_exc()

    def _fail(self, error: Exception) -> int:
        from trovemq_spark import report

        if self._debug:
            traceback.print_exc()
        if report.is_usage(error):
            return usage_error(report.error_of(error).message, self._advice)
        sys.stderr.write(report.failure_line(error) + "\n")
        return report.EXIT_FAILURE

    @staticmethod
    def _show(result: Report) -> int:
        from trovemq_spark import report

        try:
            sys.stdout.write(report.report_text(result, terminal=sys.stdout.isatty()))
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # also at the process's end
        return report.exit_code(result)


def _progress() -> AbstractContextManager[Progress]:
    if sys.stderr.isatty():
        from trovemq_spark.progress import ProgressBar

        return ProgressBar()
    from trovemq_spark.job import NoProgress

    return nullcontext(NoProgress())


def stopped_code() -> int:
    """The exit code of a run that was stopped."""
    return 128 + (stopped_by[-1] if stopped_by else signal.SIGINT)


def usage_error(what: str, advice: str = f"See `{PROGRAM} --help`.") -> int:
    """Prints the fault on one line; returns the exit code."""
    what = " ".join(what.split())
    end = "" if what.endswith((".", "?", "!")) else "."
    sys.stderr.write(f"error: {what}{end} {advice}\n")
    return 2
