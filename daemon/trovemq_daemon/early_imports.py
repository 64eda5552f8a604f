"""Imports, at a daemon's start, the modules that Python or a library would import at their first use.

An import opens files. Where no descriptor is free it would fail a request, or end the daemon; a codec is
imported by the first `encode` that names it.
"""

from __future__ import annotations

import codecs
import importlib
from contextlib import suppress
from typing import Final

CODECS: Final = ("ascii", "idna", "latin-1", "unicode_escape", "utf-16-be", "utf-8", "utf-8-sig")
MODULES: Final = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)


def import_early(*modules: str) -> None:
    """Imports those of every daemon, and `modules`; one that is not installed is left out."""
    for name in CODECS:
        codecs.lookup(name)
    for name in (*MODULES, *modules):
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
