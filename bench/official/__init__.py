"""RocketMQ's official Java and Python clients, with ours, a stub of constant replies, and RocketMQ's proxy.

    replies   the stub's replies, which our broker gave once
    stub/     the stub: grpc-go, which costs so little that the client alone bounds the rate
    rocketmq  RocketMQ's nameserver, broker and proxy, where `bench/peers/setup.sh` installed them
    clients   the clients' programs (bench/clients), installed below build/bench
    run       the rows

All servers run at once, and a client goes through them one after the other in one process: its ratios are of
the same seconds.
"""
