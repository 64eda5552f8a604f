"""Clients' messages: checked, gathered into batches, appended, answered when durable.

`append` appends batches, `coalesce` gathers single sends of one turn, `choose_queue` picks queues, `outgoing`
encodes records, `group_commit` syncs and answers. It imports the store alone.
"""
