"""Imports the modules that daemons import at their start: the fork server then has it done for each daemon.

These are the modules that a library would import at its first use: numpy.ma, parts of uvicorn and of anyio.
A forked broker took 54 ms of the processor to import them, a third of its life from start to stop.
"""

from __future__ import annotations

from trovemq_broker.daemon.app import LATE_MODULES
from trovemq_daemon.early_imports import import_early

import_early(*LATE_MODULES)
