"""The message store: Apache RocketMQ's files, read, written, indexed and recovered, as a library.

Read in this order: `files` is the seam to the disk; `log` has segments, the commit log and its recovery;
`topics` the topics, groups and consumer offsets; `index` the projections of the log: consume queues, the key
index and the trees; `engine` puts them together as MessageStore, with several kinds of append; `events` has
deliveries and acknowledgements as records of the log; `check` says whether a store is sound and repairs it;
`backup` copies and restores it.

Each imports only those before it, and `trovemq_proto`. Nothing here knows an event loop, a network, gRPC, a
clock or randomness: time comes in as an argument.
"""
