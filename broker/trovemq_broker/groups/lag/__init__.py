"""The lag of consumer groups.

- `stored`           of all groups, from the stored offsets
- `filtered`         of one group on one queue, without the messages that its filter drops
- `backlog`          messages in flight and messages that are ready
- `priority_counts`  messages of each priority that arrived
"""
