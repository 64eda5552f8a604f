"""The track of a message: its copies, deliveries, acknowledgements, and why a group has not consumed it.

`delayed` finds messages that wait for their time by topic and key.
"""
