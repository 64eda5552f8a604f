"""Makes Spark find the format `trovemq-log` by itself."""

from trovemq_spark.sources.log_batch import TroveLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
