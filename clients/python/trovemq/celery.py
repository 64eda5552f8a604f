"""Celery and kombu on TroveMQ: `pip install 'trovemq[celery]'`. The import registers `trovemq://`.

    import trovemq.celery
    from celery import Celery

    app = Celery("shop", broker="trovemq://127.0.0.1:8081")

The URL is that of `trovemq.connect`: one broker or several nameservers, user and secret, `?tls=true`. Each
queue of Celery is a topic, and all workers are one consumer group. `broker_transport_options` may have the
values of `Settings`; another name is an error. A program that does not import this module gets kombu's error
`No such transport: trovemq`; the setting `broker_transport = "trovemq.celery:Transport"` names the class
instead.
"""

from __future__ import annotations

from typing import Final

from kombu.transport import TRANSPORT_ALIASES

from trovemq._kombu.channel import Channel
from trovemq._kombu.failures import BrokerAwayError
from trovemq._kombu.names import queue_of, topic_of
from trovemq._kombu.settings import Settings
from trovemq._kombu.transport import Transport

__all__ = ["BrokerAwayError", "Channel", "Settings", "Transport", "queue_of", "topic_of"]

SCHEME: Final = "trovemq"

TRANSPORT_ALIASES.setdefault(SCHEME, "trovemq.celery:Transport")
