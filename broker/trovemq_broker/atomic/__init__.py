"""Atomic transactions: messages of several topics and acknowledgements, all of them or none."""
