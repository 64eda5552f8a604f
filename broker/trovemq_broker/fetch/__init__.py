"""Messages by queue offset: `pull` reads, `long_poll` waits for new ones, `offsets` keeps the committed
offsets. `replica_puller` pulls
from a copy of the log.

It imports the store alone.
"""
