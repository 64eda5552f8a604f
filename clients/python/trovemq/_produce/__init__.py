"""Sends: the choice of a queue, records, numbers of producers, and their delivery."""
