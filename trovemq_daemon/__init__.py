"""What both daemons share: settings, addresses, logging, signals, exit codes, gRPC server, ops HTTP."""

import os

# gRPC's C core writes lines of its own to standard error; what matters reaches us as an exception.
# It reads this when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
