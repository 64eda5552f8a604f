"""The agreement of a replica group's nodes, outside of their logs: keys and bytes in etcd.

- `coordinator`      the interface: read, compare-and-swap, lease, watch
- `etcd_client`      the RPCs of etcd that it needs, on our own transport
- `etcd_replies`     the bounds of etcd's replies
- `etcd_health`      whether etcd answers, its members and version, for operators
- `etcd_coordinator` the coordinator of one group, by that client

The meaning of the keys is unknown here: replication.election_records has their values.
"""
