"""Delivery of messages to groups: leases, receipt handles, order, priority, retries, dead letters."""
