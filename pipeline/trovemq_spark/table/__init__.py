"""The table that a log is."""
