"""The parts that the services of both protocols share. Read `broker_core` first: services take a BrokerCore.

`clients` and `commands` are the registry of connected clients and the commands to them; `receiver` and
`acknowledger` receive and acknowledge messages for a group. `pace` and `trovemq_daemon.turns` share the event
loop among long requests.
"""
