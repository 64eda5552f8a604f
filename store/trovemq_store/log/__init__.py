"""The commit log: segments of records, their state after a crash, and how it is recovered.

`segments` and `commit_log` write, `raw_append` checks bytes of another node's log first, `reader` reads,
`recovery` and `tail` find the end after a crash, `checkpoint` and `state` remember how far the store was
durable, `retention` says which segments may be removed, `projection` is the interface of everything that is
derived from the log. It imports `files` alone.
"""
