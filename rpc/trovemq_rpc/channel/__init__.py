"""The channel and its calls.

| to read | has |
| --- | --- |
| `target` | the addresses of a name |
| `endpoint`, `subchannel` | a connection; one that is opened again when it is lost |
| `client_method`, `response` | a method's requests, a response's headers |
| `call_channel`, `call_context`, `call`, `kinds` | a call: channel, caller, life, kinds |
| `multi_callables` | the methods of stubs |
| `channel` | calls on their way to a connection, states |
"""

from __future__ import annotations

from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.channel import Channel, insecure_channel, secure_channel
from trovemq_rpc.channel.connectivity import ChannelConnectivity
from trovemq_rpc.channel.kinds import (
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)
from trovemq_rpc.channel.multi_callables import (
    StreamStreamMultiCallable,
    StreamUnaryMultiCallable,
    UnaryStreamMultiCallable,
    UnaryUnaryMultiCallable,
)

__all__ = [
    "Call",
    "Channel",
    "ChannelConnectivity",
    "StreamStreamCall",
    "StreamStreamMultiCallable",
    "StreamUnaryCall",
    "StreamUnaryMultiCallable",
    "UnaryStreamCall",
    "UnaryStreamMultiCallable",
    "UnaryUnaryCall",
    "UnaryUnaryMultiCallable",
    "insecure_channel",
    "secure_channel",
]
