"""The seam to the disk: nothing else opens, maps, writes, syncs, renames or removes a file of the store.

`files` is the interface, `real` the operating system, `memory` a disk of the tests with power cuts, `faulty`
one that fails on request, `guarded` the one that an open store uses, `read_only` one that cannot write.
`kernel_sync` syncs without a thread.
`trees` is the interface of sorted trees, `lmdb_trees` and `memory_trees` are two of them. It imports nothing
of the store.
"""
