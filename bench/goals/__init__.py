"""The rows of `make bench ARGS=peers` in which no other broker is measured: figures that ours is to keep.

    lookups      key queries and look-ups by id among a million messages
    idle         a thousand connected clients that wait for messages (idle_clients: their process)
    engine       a message of a large batch in the engine
    topics       a message's cost among one topic and among 10,000
    connections  a thousand calls in flight over one connection and over a thousand
    sync         the flush thread's hand-over; sync flush with one to 1,000 sends in flight
    calls        raw SendMessage calls, which cost their client little

Each module has `measure(report, directory, quick=...)`.
"""
