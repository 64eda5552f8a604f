"""TroveMQ on Spark: the log as a table, live and offline."""
