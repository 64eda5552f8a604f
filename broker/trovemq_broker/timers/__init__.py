"""Delayed messages: the table of pending ones, their delivery and recall, and RocketMQ's timer wheel
files."""
