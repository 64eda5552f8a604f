"""Consume queues and index files made from a commit log alone, in tasks that know no Spark."""
