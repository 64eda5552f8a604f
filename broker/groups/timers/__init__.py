"""Delayed messages: the timer wheel's files of RocketMQ, due messages, recalled messages."""
