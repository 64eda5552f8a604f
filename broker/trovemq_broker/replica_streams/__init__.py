"""The streams between the nodes of a replica group: `trovemq_broker.replication` on the event loop, the
network and the real engine.

- `stream_settings` limits and times
- `outgoing`        the frames to one follower that are not sent yet
- `leader_streams`  a leader and all its followers; acknowledgements ask it (ReplicatedCommit)
- `follower_stream` a follower: dials its leader, again and again, and carries out the actions
- `engine_log`      MessageStore as the log of both sides
- `engine_store`    a follower's promise, cut, join and in-sync set on MessageStore and `replica.json`
- `log_repair`      damaged records of a node's log from the other nodes' copies
- `service`         ReplicationService on a listener that serves nothing else
- `peers_allowed`   who may call it
- `node_login`      the log-in of nodes at plain listeners

A stream has one order: on the leader all frames of a follower go through its `Outgoing`; on the follower no
frame is read while a promise, cut, join or set is being stored.
"""
