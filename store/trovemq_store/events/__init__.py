"""Deliveries and acknowledgements as records of the log: the form of each event, the log of them, snapshots.

`receipt_handle` and `sources` are here because events and their readers name a delivery by them.
"""
