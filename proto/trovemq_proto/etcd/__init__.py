"""A part of the protocol of etcd, by which the nodes of a replica group agree."""
