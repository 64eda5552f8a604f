"""What runs beside requests: retention, flushes of the indexes, snapshots of groups, the trees."""
