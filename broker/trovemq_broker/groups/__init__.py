"""Consumer groups: delivery of messages to their members, redelivery, and acknowledgements.

- `delivery`      leases, order, retries and dead letters, from the queues to the members
- `members`       receives that wait for messages
- `lag`           messages that wait: stored, filtered, in flight, by priority
- `dead_letters`  sends dead letters again to the topic that they came from
"""
