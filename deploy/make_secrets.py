"""Makes certificates, users and secrets, so that nameserver, brokers and clients trust each other; once.

    python make_secrets.py DIRECTORY [BROKER[=HOST[,HOST…]] …]

| file                      | content                                                                        |
|---------------------------|--------------------------------------------------------------------------------|
| ca.pem                    | the authority that clients trust; its key is thrown away                       |
| server.pem, server.key    | one certificate for all services, by the hosts that they have                  |
| admin.credentials         | the super user of all brokers, for the command line and the console            |
| BROKER.credentials        | how a broker registers                                                         |
| sealing-key               | seals the users' secrets: one for all nodes of a replica group                 |
| users.toml                | the nameserver's users: the brokers and the super user                         |

Without brokers they are those of docker-compose.yml. A replica group is one broker with the hosts of its
nodes, their names, and the hosts of etcd. A directory that has all of it stays as it is. Secrets are readable
to their owner alone. Take an authority of your own where other machines can reach the cluster.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BROKERS = {"broker-a": "broker-a", "broker-b": "broker-b"}
HOSTS = ("nameserver", "console", "localhost", "127.0.0.1")
LAST = "users.toml"


def main(directory: Path, brokers: Mapping[str, str]) -> None:
    """`brokers`: their hosts by their names, separated by commas."""
    if (directory / LAST).exists():
        return
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    certificates(directory, [*",".join(brokers.values()).split(","), *HOSTS])
    write(directory / "sealing-key", secrets.token_hex(32) + "\n")
    users = ["# Made by make_secrets.py."]
    for name in (*brokers, "admin"):
        secret = secrets.token_urlsafe(32)
        write(directory / f"{name}.credentials", f"access_key={name}\nsecret_key={secret}\n")
        users += [f'[[broker]]\nname = "{name}"' if name in brokers else "[[client]]"]
        users += [f'access_key = "{name}"', f'secret_key = "{secret}"']
    write(directory / LAST, "\n".join(users) + "\n")


def write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def certificates(directory: Path, hosts: list[str]) -> None:
    """By `trovemq cert`."""
    cert = [sys.executable, "-m", "trovemq.cli", "cert"]
    place = ["--dir", str(directory), "--force"]
    subprocess.run([*cert, "ca", *place], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*cert, "server", *hosts, *place], check=True, stdout=subprocess.DEVNULL)
    (directory / "ca.key").unlink()


if __name__ == "__main__":
    given = {name: host or name for name, _, host in (word.partition("=") for word in sys.argv[2:])}
    main(Path(sys.argv[1]), given or BROKERS)
