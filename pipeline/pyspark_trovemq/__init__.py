"""Registers the format `trovemq`: Spark imports this module by its name when the format is used."""

from trovemq_spark.sources.live_batch import TroveDataSource as DefaultSource

__all__ = ["DefaultSource"]
