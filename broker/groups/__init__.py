"""Consumer groups: delivery of messages to their members, redelivery, and acknowledgements.

`consumer_state` combines the parts and recovers them: `delivery` (leases, order, retries, dead letters),
`timers` (delayed messages), `transactions` (half messages), `atomic` (several records or none), `filters`
(tags, SQL-92). Further modules: lag, waiting receives, dead letters, and the queues that hold segments of the
log.
"""
