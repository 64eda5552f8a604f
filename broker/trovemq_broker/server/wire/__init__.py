"""Requests to commands, results to replies, by subject; and the broker's own frames. Knows no service: the
handlers know the commands and results, and no messages of the protocols (conversion.py).
"""
