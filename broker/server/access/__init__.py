"""Who may call what, at both doors.

- `needs`        the table: the needs of each RPC
- `open_methods`  calls that need no credentials, and wrong ones, counted by address
- `refusals`     how RocketMQ's protocol says no
- `gate`         who calls, and whether they may: `broker.security` with the time, the peer and the counters
- `guard`        puts the gate before every handler
- `checked_context`  the call's context behind the gate: its requests and replies
- `changes`      users and rules changed as a service: on disk before the reply, off the event loop
- `security_service`  handshakes and administration (security.proto)

Nothing else decides about access; a handler that has begun does its request.
"""
