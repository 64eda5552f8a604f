"""The common part of both daemons: settings, addresses, logging, signals, exit codes, gRPC server, ops
HTTP."""

import os

# gRPC's C core writes its own lines to standard error; its errors also arrive as exceptions. It reads this
# variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
