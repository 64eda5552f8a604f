"""The cost of importing the package."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_package_loads_no_grpcio() -> None:
    """A client that uses ours starts without cygrpc."""
    code = "import sys, trovemq_rpc; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
