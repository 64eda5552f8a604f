#!/usr/bin/env bash
# Installs the brokers of `make bench ARGS=peers` below $PEERS (default ~/.cache/peers), with package clients alone: apt-get
# (as root, where a server is not there yet), pip, mvn (Java 17 or newer), go (a NATS that can sync), gcc. Safe to run again. A broker that
# cannot be installed is left out of the benchmark. $PYTHON: the interpreter of their clients, which should be ours
# (`make setup PYTHON=...`).
set -euo pipefail
PEERS="${PEERS:-$HOME/.cache/peers}"
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
mkdir -p "$PEERS"

if ! command -v redis-server >/dev/null || ! PATH="$PATH:/usr/sbin" command -v nats-server >/dev/null; then
  # The packages are not to start their servers.
  if ! [ -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server nats-server >/dev/null
fi

[ -x "$PEERS/venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$PEERS/venv"
"$PEERS/venv/bin/pip" install -q uvloop redis==8.1.0 hiredis nats-py==2.16.0 confluent-kafka==2.16.1

# Debian's NATS cannot sync before it acknowledges.
if command -v go >/dev/null && ! [ -x "$PEERS/bin/nats-server" ]; then
  (cd / && GOBIN="$PEERS/bin" go install github.com/nats-io/nats-server/v2@v2.15.3)
fi

# Kafka; RocketMQ's nameserver, broker and proxy, for the official clients' rows.
for peer in kafka rocketmq; do
  mkdir -p "$PEERS/$peer"
  cp "$HERE/$peer.pom.xml" "$PEERS/$peer/pom.xml"
  [ -d "$PEERS/$peer/libs" ] || (cd "$PEERS/$peer" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=new-libs && mv new-libs libs)
done
gcc -shared -fPIC -O2 -o "$PEERS/rocketmq/loopback.so" "$HERE/loopback.c" -ldl
echo "peers are installed in $PEERS"
