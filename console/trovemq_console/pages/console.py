"""The parts that every page uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from trovemq import Client, TroveError, errors
from trovemq_console.cluster import Cluster
from trovemq_console.examination import Examination
from trovemq_console.guard import session_of
from trovemq_console.pages.forms import whole_number
from trovemq_console.sampling import Sampler
from trovemq_console.sessions import Sessions
from trovemq_console.settings import ConsoleSettings

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/dead-letters", "Dead letters"),
    ("/delayed", "Delayed"),
    ("/transactions", "Transactions"),
    ("/storage", "Storage"),
    ("/replicas", "Replicas"),
    ("/configuration", "Configuration"),
    ("/access", "Access"),
)
PAGE_ROWS: Final = 50


@dataclass(frozen=True, slots=True)
class Console:
    """The parts of a console."""

    settings: ConsoleSettings
    cluster: Cluster
    sampler: Sampler
    sessions: Sessions
    environment: Environment
    examination: Examination

    async def client(self) -> Client:
        """The SDK's client."""
        return await self.cluster.client()

    def respond(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page of the template."""
        return HTMLResponse(self.render(request, template, **values), status)

    def render(self, request: Request, template: str, **values: Any) -> str:
        """The text of a template, with the values that all templates get."""
        return self.environment.get_template(template).render(
            settings=self.settings,
            navigation=NAVIGATION,
            path=request.url.path,
            query=request.query_params.get("q", "").strip(),
            form_token=self.sessions.form_token(session_of(request)),
            **values,
        )


@dataclass(frozen=True, slots=True)
class Paging:
    """A part of a long list.

    Attributes:
        first: Index of the part's first row.
        total: Rows of the whole list.
        size: Rows of one part.
    """

    first: int
    total: int
    size: int = PAGE_ROWS

    @property
    def last(self) -> int:
        """Index after the part's last row."""
        return min(self.first + self.size, self.total)

    @property
    def before(self) -> int | None:
        """Where the previous part begins."""
        return max(self.first - self.size, 0) if self.first else None

    @property
    def after(self) -> int | None:
        """Where the next part begins."""
        return self.last if self.last < self.total else None


def paging(request: Request, total: int, size: int = PAGE_ROWS) -> Paging:
    """The requested part."""
    first = number(request, "from") or 0
    return Paging(first if first < total else 0, total, size)


def text(request: Request, name: str) -> str:
    """A parameter; "" if it is not given."""
    return request.query_params.get(name, "")


def required(request: Request, name: str) -> str:
    """A parameter. Raises TroveError REQUEST_ILLEGAL if it is missing."""
    value = text(request, name)
    if not value:
        raise TroveError(errors.REQUEST_ILLEGAL, f"the address lacks {name}=…", field=name)
    return value


def number(request: Request, name: str) -> int | None:
    """A whole number; None if it is not given. Raises TroveError REQUEST_ILLEGAL for anything else."""
    value = text(request, name)
    return whole_number(value, name) if value else None
