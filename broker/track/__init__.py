"""What became of a message: its copies, deliveries, acknowledgements, and why a group has not consumed it."""
