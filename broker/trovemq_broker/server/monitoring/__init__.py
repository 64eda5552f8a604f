"""Prometheus metrics: counted by `traffic` and `statistics`, described by `metric_families`."""
