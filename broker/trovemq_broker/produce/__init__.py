"""Clients' messages: checked, gathered into batches, appended, answered when durable.

`append` appends batches, `accumulator` gathers those of one iteration of the event loop, `queue_chooser`
picks queues, `outgoing` encodes records, `group_commit` syncs and answers. It imports the store alone.
"""
