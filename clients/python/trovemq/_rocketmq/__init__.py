"""RocketMQ's v2 protocol, as the SDK speaks it: consumer groups, transactions, delayed messages.

statuses.py   status codes -> TroveError
identity.py   client ids and the metadata of calls
messages.py   v2 messages <-> the SDK's own values
messaging.py  the calls of one client to one broker
session.py    one Telemetry stream with its heartbeats and commands
sessions.py   one of them for each broker of a topic
commands.py   brokers' commands to clients on that stream
inbox.py      received messages for the program; the order of message groups
settling.py   acknowledgements in batches, with retries
grouped.py    receiving for a consumer group
broadcast.py  receiving everything, by queue offset
sending.py    sends that need this protocol: delayed and half messages
recalling.py  recall of delayed messages
"""
