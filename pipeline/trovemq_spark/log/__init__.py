"""A commit log's segments, read without a broker."""
