"""Parquet files with a manifest of the files that count."""
