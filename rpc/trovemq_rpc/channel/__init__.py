"""The channel: `insecure_channel()` and its calls. Read `target`, `endpoint`, `subchannel`,
`call`, then `channel`.
"""

from __future__ import annotations

from trovemq_rpc.channel.call import Call
from trovemq_rpc.channel.channel import Channel, insecure_channel, secure_channel
from trovemq_rpc.channel.connectivity import ChannelConnectivity
from trovemq_rpc.channel.interceptors import (
    ClientCallDetails,
    ClientInterceptor,
    InterceptedUnaryUnaryCall,
    ServerInterceptor,
    StreamStreamClientInterceptor,
    StreamUnaryClientInterceptor,
    UnaryStreamClientInterceptor,
    UnaryUnaryClientInterceptor,
)
from trovemq_rpc.channel.kinds import (
    StreamStreamCall,
    StreamUnaryCall,
    UnaryStreamCall,
    UnaryUnaryCall,
)

__all__ = [
    "Call",
    "Channel",
    "ChannelConnectivity",
    "ClientCallDetails",
    "ClientInterceptor",
    "InterceptedUnaryUnaryCall",
    "ServerInterceptor",
    "StreamStreamCall",
    "StreamStreamClientInterceptor",
    "StreamUnaryCall",
    "StreamUnaryClientInterceptor",
    "UnaryStreamCall",
    "UnaryStreamClientInterceptor",
    "UnaryUnaryCall",
    "UnaryUnaryClientInterceptor",
    "insecure_channel",
    "secure_channel",
]
