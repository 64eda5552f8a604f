"""A Celery application for tests: `celery -A tests.support.celery_shop worker`.

Its tasks append lines to the file SHOP_LOG; one that is to wait does so until the file SHOP_LOG.go exists.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import trovemq.celery  # noqa: F401  registers trovemq://

LOG = Path(os.environ.get("SHOP_LOG", os.devnull))

app = Celery("shop", broker=os.environ.get("SHOP_BROKER", "trovemq://127.0.0.1:1"), backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_routes={"mail": {"queue": "mail.high"}},
    broker_transport_options={"renew_after": 1.0, "renewed_lease": 12.0},
)


def note(*words: object) -> None:
    """One write, so that lines of several processes stay whole."""
    with LOG.open("ab", buffering=0) as log:
        log.write((" ".join(map(str, words)) + "\n").encode())


@app.task(name="add")
def add(one: int, two: int) -> int:
    note("add", one + two)
    return one + two


@app.task(name="mail")
def mail(to: str) -> None:
    note("mail", to)


@app.task(name="parent")
def parent() -> None:
    """Publishes in a child process of the pool."""
    add.delay(40, 2)
    note("parent", os.getpid())


@app.task(name="flaky", bind=True, max_retries=3)
def flaky(self: Any) -> None:
    note("flaky", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.3)


def work(number: int) -> None:
    note("begin", number)
    while not LOG.with_suffix(".go").exists():
        time.sleep(0.01)
    note("end", number)


late = app.task(name="late", acks_late=True)(work)
early = app.task(name="early", acks_late=False)(work)
