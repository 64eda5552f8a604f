"""Administration: brokers, groups, stores, users."""
