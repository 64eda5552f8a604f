"""The table of a log: its columns and types."""
