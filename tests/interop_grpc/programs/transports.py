"""The two transports that the programs run on: this package, and grpcio as a peer to compare with."""

import importlib
from types import ModuleType, SimpleNamespace
from typing import Final

__all__ = ["TRANSPORTS", "Transport", "transport"]

TRANSPORTS: Final = ("native", "grpcio")

# The names of grpc.aio, as both have them.
Transport = ModuleType | SimpleNamespace


def transport(name: str) -> Transport:
    if name == "native":
        return importlib.import_module("trovemq_rpc")
    grpc = importlib.import_module("grpc")
    aio = importlib.import_module("grpc.aio")
    return SimpleNamespace(**{**vars(grpc), **{key: getattr(aio, key) for key in aio.__all__}})
