"""Messages by queue offset: `pull` reads, `long_poll` waits for new ones, `offsets` keeps what was committed.

It imports the store alone.
"""
