"""RocketMQ's v2 protocol, as the SDK speaks it: membership, transactions, delayed messages.

statuses.py   status codes -> TroveError
identity.py   client ids and the metadata of calls
messages.py   v2 messages <-> the SDK's own values
messaging.py  the calls of one client to one broker
session.py    one Telemetry stream with its heartbeats and commands
sessions.py   one of them for each broker of a topic
commands.py   brokers' commands to clients on that stream
settling.py   acknowledgements in batches, with retries
sending.py    sends that need this protocol: delayed and half messages
recalling.py  recall of delayed messages
"""
