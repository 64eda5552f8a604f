"""Parts that the services of both protocols share: the registry of clients and its commands, and the
receipt and acknowledgement of messages for a group.

`pace` and `trovemq_daemon.turns` share the event loop among long requests.
"""
