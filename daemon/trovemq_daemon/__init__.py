"""The common part of both daemons: settings, addresses, logging, signals, exit codes, gRPC server, ops
HTTP.

Read in this order: `settings` and `cli` make settings of files, variables and options; `lifecycle` starts and
stops a daemon; `grpc_server` and `grpc_services` serve its calls; `ops_http` serves metrics
and probes; `tls` and `sessions` decide whom it trusts. The other modules are parts of these.
"""

import os

# gRPC's C core writes its own lines to standard error; its errors also arrive as exceptions. It reads this
# variable when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
