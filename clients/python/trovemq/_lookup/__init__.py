"""Look-ups over all brokers: by key, id and time, search by conditions, and tracks of messages."""
