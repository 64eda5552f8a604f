"""Background work: retention, flushes of the indexes, snapshots of groups, the trees."""
