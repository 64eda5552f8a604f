"""Consumer groups: who is given which message, when again, and what they did with it.

`consumer_state` puts the parts together and recovers them: `delivery` (leases, order, retries, dead letters),
`timers` (delayed messages), `transactions` (half messages), `atomic` (several records or none), `filters`
(tags, SQL-92). Beside them: lag, waiting receives, dead letters, what keeps segments of the log.
"""
