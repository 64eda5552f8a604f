"""Copies of the log on several nodes: a leader and its followers, as plain state machines.

Times, frames and results of the disk come in; frames and actions go out. Nothing here knows a network, a
clock or a file.

- `frames`    the frames, as values
- `commit`    the commit offset
- `in_sync`   the in-sync set and its changes
- `meeting_point` the point from which a follower continues
- `leader`    the leader: hello, data by window, progress, commit
- `follower`  the follower: promise, cut, append, progress
- `read_lag`  the lag of a follower's readers
- `peers`     a follower as its leader sees it; the copies that a commit waits for
- `members`   the list of members, and its changes
- `promotion` the choice of the next leader by an operator
- `election`  the election of a leader at a coordinator. Beside it: `election_records` the values there,
  `election_actions` its actions, `election_view` a reading and its consequences, `election_lease` the lease,
  `election_leadership` the writes of a leader, `election_switch` the planned switch-over,
  `election_members` changes of the members

docs/internals/replication.md and failover.md have the rules, and why they are safe.
"""
