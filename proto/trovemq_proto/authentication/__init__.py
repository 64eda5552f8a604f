"""How a client of ours proves who it is, as both sides need it: `scram` once a connection, `calls` then."""
