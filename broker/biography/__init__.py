"""What became of one message: its copies, what groups did with it, and why one has not consumed it yet."""
