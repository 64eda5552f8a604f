"""The commit log: segments of records, what a crash leaves of them, and how it is recovered.

`segments` and `commit_log` write, `reader` reads, `recovery` and `tail` find the end after a crash,
`checkpoint` and `state` remember how far the store was durable, `retention` says which segments may go,
`projection` is what everything that is derived from the log has in common. It imports `files` alone.
"""
