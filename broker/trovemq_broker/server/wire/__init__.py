"""Requests and replies as bytes: the broker's own frames, RocketMQ's messages, the checks of a send, and
the statuses of replies. Knows no service.
"""
