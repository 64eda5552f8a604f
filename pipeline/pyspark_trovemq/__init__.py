"""Where Spark looks for the format `trovemq` by itself."""

from trovemq_spark.sources.live_batch import TroveDataSource as DefaultSource

__all__ = ["DefaultSource"]
