"""support-bundle: collects the state of a cluster in one file, for a maintainer."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Final

import typer

from trovemq.cli.session import Session, verb

HTTP_DEFAULT: Final = "127.0.0.1:8080"

FilesOption = list[Path] | None


def register(app: typer.Typer) -> None:
    """Adds the verb to the command tree."""
    verb(app, "support-bundle")(support_bundle)


async def support_bundle(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The archive (zip), a new file.", show_default=False)
    ],
    http: Annotated[
        list[str] | None,
        typer.Option(
            "--http",
            metavar="ADDRESS",
            help=f"Operations HTTP of a daemon (repeatable); default {HTTP_DEFAULT}.",
            show_default=False,
        ),
    ] = None,
    configs: Annotated[
        FilesOption,
        typer.Option(
            "--config", metavar="FILE", help="A broker's settings (repeatable).", show_default=False
        ),
    ] = None,
    logs: Annotated[
        FilesOption,
        typer.Option("--log", metavar="FILE", help="A daemon's log (repeatable).", show_default=False),
    ] = None,
) -> None:
    """Collect evidence to find a fault. Settings, metrics, logs, topology, health, without secrets."""
    from importlib.metadata import version

    from trovemq.cli.bundle_parts import parts_of

    made: dict[str, object] = {"at": datetime.now(UTC).isoformat(), "trovemq": version("trovemq")}
    errors: dict[str, str] = {}
    names: list[str] = []
    with _new_file(file) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        async for part in parts_of(session, http or [HTTP_DEFAULT], configs or (), logs or ()):
            names.append(part.name)
            if part.error:
                errors[part.name] = part.error
            if part.content:
                archive.writestr(part.name, part.content)
        archive.writestr("bundle.json", json.dumps({**made, "parts": names, "errors": errors}, indent=1))
    session.output.item({"file": str(file), "parts": names, "errors": errors})
    if session.output.objects:
        return
    from trovemq.cli.render import printable, table

    rows = [(name, printable(errors.get(name, "")) or "collected") for name in names]
    session.output.show(table(("part", "state"), rows))
    session.output.remark(f"look through {file} before you send it: it has names of topics and groups")


@contextmanager
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """The new archive, which only its owner may read; it is removed if the block fails. Raises
    typer.BadParameter if the file exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
