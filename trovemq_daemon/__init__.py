"""The common part of both daemons: settings, addresses, logging, signals, exit codes, gRPC server, ops
HTTP."""

import os

# gRPC's C core writes lines of its own to standard error; its errors reach us as exceptions. It reads this
# when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
