"""The check of access, for the services of both protocols.

- `needs`             the table of the permissions that each RPC needs
- `open_methods`      calls without credentials, or with wrong ones, counted by address
- `refusals`          refusals in RocketMQ's protocol
- `gate`              the caller, and the decision: `trovemq_broker.security` with the time, the peer and the
                      counters
- `guard`             adds the gate to every handler
- `checked_context`   the call's context for its handler: admitted requests, replies within the quotas
- `security_service`  handshakes and administration (security.proto)

No other code decides about access; a handler that has begun executes its request.
"""
