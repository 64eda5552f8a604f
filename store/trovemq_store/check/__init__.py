"""A store checked against itself: every record, every consume-queue unit, every key-index item.

The same checks serve a live store (in small steps, beside requests) and a stopped one (`trovemq store
verify`). Synchronous: the caller decides when the next step runs.
"""
