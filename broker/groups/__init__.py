"""Consumer groups: which member gets a message, when it gets it again, and acknowledgements.

`consumer_state` puts the parts together and recovers them: `delivery` (leases, order, retries, dead letters),
`timers` (delayed messages), `transactions` (half messages), `atomic` (several records or none), `filters`
(tags, SQL-92). Beside them: lag, waiting receives, dead letters, and the holders of segments of the log.
"""
