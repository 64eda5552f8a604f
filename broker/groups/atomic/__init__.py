"""Atomic transactions: messages of several topics and acknowledgements, together or not at all."""
