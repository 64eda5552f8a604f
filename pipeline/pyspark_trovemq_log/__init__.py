"""Registers the format `trovemq-log`: Spark imports this module by its name when the format is used."""

from trovemq_spark.sources.log_batch import TroveLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
