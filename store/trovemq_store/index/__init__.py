"""The projections of the log, which can be rebuilt from it: consume queues, the key index, the trees.

`dispatcher` applies new records to all of them. `consume_queues` and `key_index` are RocketMQ's files;
`trees` are TroveMQ's sorted trees: unique ids, priority order, producers, search entries. Each has its own
position in the log and is brought up to date at the next start. It imports `log`, `topics`, `files`.
"""
