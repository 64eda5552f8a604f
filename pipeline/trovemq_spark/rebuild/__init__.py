"""Builds consume queues and index files from a commit log alone, in tasks that know no Spark."""
