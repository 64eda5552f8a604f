"""Its version 3; etcd.proto has the messages."""
