"""Spark's formats `trovemq` and `trovemq-log` for reading."""
