"""Whole daemons and clients of two source trees, measured alternately."""
