"""The cluster's configuration: topics, groups, users, rules, quotas and members, with one owner. Marks of
generations, times and files come from the caller; nothing here uses a network.

- `entries`     kinds, ids, versions, changes and their limits
- `table`       entries and deletions in memory, the checks of a change
- `table_file`  its file, as records
- `stored`      table and file together: a change is on disk, or it is not made
- `messages`    hello, parts of an update, reports
- `owner`       changes, acknowledgement, followers
- `follower`    takes the owner's updates; whether the broker may serve
- `take_over`   the next owner, where one is lost
- `reconcile`   the actions on the broker's own tables

docs/internals/cluster-configuration.md has the states, and the messages that the services carry.
"""
