"""The state of a node whose log is a copy of others', or has copies: epochs, promise, cuts of the log.

`epochs` has the list of leaderships and the common point of two logs, `epoch_checkpoint` RocketMQ's file of
it, `replica_file` keeps both on disk with the promise, `whole_end` finds an atomic run without its end,
`conversion` gives the log of a single broker its first epoch. A store that was never a node of a replica
group has none of these files. It imports `log`, `files`.
"""
