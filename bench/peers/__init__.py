"""`make bench ARGS=peers`: other brokers beside ours, in one run, with their own Python clients.

`bench/peers/setup.sh` installs them: Debian's redis-server and nats-server, Kafka by Maven, clients into a
separate environment below `$PEERS` (default ~/.cache/peers). A peer that is not installed is skipped, by
name.

    task       the task of a client process, and its answer
    client     the client process: one workload of one client
    peer, servers    a server: how it is started; its process, its address, its processor time
    ours, redis_streams, jetstream, kafka    one module a broker: its server, its clients
    workloads  the workloads with their goals
    run        the part of the benchmark: servers, rounds, ratios

A new peer is a module with `PEER`, `connected` and `CLIENTS` (name to class), named in `run.PEERS` and in the
workloads. Clients run in the peers' environment: at the top, their modules import the standard library and
`bench.peers` alone.
"""
