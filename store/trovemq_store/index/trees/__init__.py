"""Sorted trees beside the log: unique ids, priority order, producers' numbers, search entries.

`layout` has the bytes, `store_trees` opens and rebuilds, `tree_index` is the projection that fills them.
"""
