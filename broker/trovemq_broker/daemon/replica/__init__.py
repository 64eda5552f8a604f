"""A broker that is a node of a replica group (`coordination = manual`, or `etcd`).

A role is a whole run of the daemon's inside, one after the other in one process, on the same addresses:

- follower: the store is open with its commit limit, and follows; the client's port answers NOT_LEADER
- leader: today's broker on the same store, and the streams to the followers

docs/internals/replication.md has the rules, docs/internals/failover.md those of elections by etcd. Read in
this order:

- `store_place`     the node's place in its group, at the opening of its store
- `open_node`       the open store of a node, with its state
- `node_calls`      calls of other nodes
- `finding`         who leads the group, by the other nodes
- `gathering`       the promises for a new leadership
- `waiting_servers` the servers of a node that takes no messages
- `follower_work`   syncs and maintenance of a follower's store
- `follower_role`, `leader_role`  the roles
- `elected`         calls of the election by the roles
- `election_group`  the group in etcd, founded or found
- `coordinated`     the election beside the roles
- `election_figures` its figures
- `node`            the loop of roles
"""
