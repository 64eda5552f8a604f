"""Parquet files, and a manifest of those that are committed."""
