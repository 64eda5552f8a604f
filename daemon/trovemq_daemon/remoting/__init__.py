"""RocketMQ's remoting protocol on a port of a daemon: connections, requests, and the table of their handlers.

A connection whose first byte is 0 is remoting's; gRPC has the others (trovemq_rpc.server.guest).
"""
