"""RocketMQ's remoting protocol: frames, both forms of the header, codes and JSON.

Both sides use it: the broker and the nameserver, and the tests' client. It knows no socket and no event loop.
"""
