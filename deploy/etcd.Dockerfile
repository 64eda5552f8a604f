# etcd, for docker-compose.group.yml and deploy/kubernetes/group: Debian's package, as the user of the other image.
# Not shown: the base image, a container engine.
FROM debian:13-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends etcd-server \
 && rm -rf /var/lib/apt/lists/* \
 && install --directory --mode=0700 --owner=10001 --group=10001 /var/lib/etcd
USER 10001:10001
WORKDIR /var/lib/etcd
STOPSIGNAL SIGTERM
CMD ["etcd", "--help"]
