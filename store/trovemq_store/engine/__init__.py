"""MessageStore: the commit log and its projections as one thing, and the kinds of append.

`appending` appends, `message_store` dispatches and syncs, `reading` reads; `opening` recovers, `trim` and
`early_removal` delete old segments, `disk_reserve` keeps space for the broker's own records,
`store_checkpoint` remembers durable positions. On top: `deduplication` (append a message once),
`record_writer` (records of the broker itself), `transaction_run` (several records or none),
`unique_key_lookup` (records by unique key). It imports `index`, `log`, `topics`, `files`.
"""
