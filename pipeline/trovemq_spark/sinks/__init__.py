"""Writing from Spark: to a topic, to tables."""
