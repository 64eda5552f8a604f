"""The parts of the kombu transport; `trovemq.celery` is its public name."""
