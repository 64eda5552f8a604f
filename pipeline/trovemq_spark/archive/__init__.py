"""Parquet files with a manifest of what counts."""
