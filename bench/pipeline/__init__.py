"""`make bench-pipeline`: the pipeline beside plain Python, Spark's own writer and its Kafka source."""
