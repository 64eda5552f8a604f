"""Delayed messages: the timer wheel's files of RocketMQ, what is due, what was recalled."""
