"""Sends messages of an archive, a log or a live topic again."""
