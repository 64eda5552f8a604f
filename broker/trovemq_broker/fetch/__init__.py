"""Messages by queue offset: `pull` reads, `long_poll` waits for new ones, `offsets` keeps the committed
offsets.

It imports the store alone.
"""
