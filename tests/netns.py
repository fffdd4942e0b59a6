"""Two machines on this one: network namespaces joined by a virtual cable, so that a link can be cut and all of a node's processes be killed.

Root makes them as they are; anybody else inside a user namespace of their own, where the kernel allows that.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Machines:
    """Two namespaces, 10.77.0.1 and 10.77.0.2. They last as long as this process and vanish with it."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self):
        root = os.geteuid() == 0
        self.user = [] if root else ["--user", "--preserve-credentials"]
        self.started: list[subprocess.Popen] = []
        self.holders = [hold("machine-0", [] if root else ["--user", "--map-root-user"])]
        # The second one in the same user namespace, or the cable could not be laid.
        first = str(self.holders[0].pid)
        self.holders.append(hold("machine-1", [], [] if root else ["nsenter", "--target", first, *self.user]))
        first, second = (str(holder.pid) for holder in self.holders)
        self.ip(0, "link", "add", "cable0", "type", "veth", "peer", "name", "cable1", "netns", second)
        for node in (0, 1):
            self.ip(node, "address", "add", f"{self.addresses[node]}/24", "dev", f"cable{node}")
            self.ip(node, "link", "set", "lo", "up")
            self.ip(node, "link", "set", f"cable{node}", "up")

    def enter(self, node: int) -> list[str]:
        return ["nsenter", "--target", str(self.holders[node].pid), *self.user, "--net", "--uts"]

    def ip(self, node: int, *words: str) -> None:
        done = subprocess.run([*self.enter(node), "ip", *words], capture_output=True, text=True)
        if done.returncode:
            raise PermissionError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def start(self, node: int, *command: str, log: Path, **environment: str) -> subprocess.Popen:
        """Start a command on a node, its output in a file."""
        network = {"GLOO_SOCKET_IFNAME": f"cable{node}", "TP_SOCKET_IFNAME": f"cable{node}"}
        with open(log, "w") as file:
            process = subprocess.Popen(
                [*self.enter(node), *command],
                env={**os.environ, **network, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def cut(self) -> None:
        """Take the link down: nothing arrives any more, and nobody is told."""
        self.ip(0, "link", "set", "cable0", "down")

    def processes(self, node: int) -> list[int]:
        """Process ids in the namespace of a node, but for the one that holds it."""
        wanted = os.readlink(f"/proc/{self.holders[node].pid}/ns/net")
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns" / "net") == wanted:
                    found.append(int(path.name))
            except OSError:
                continue  # gone, or another user's
        return [number for number in found if number != self.holders[node].pid]

    def kill(self, node: int) -> None:
        """SIGKILL for every process of a node, until none is left."""
        while numbers := self.processes(node):
            for number in numbers:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for process in self.started:
                process.poll()  # a zombie is still listed
            time.sleep(0.05)

    def close(self) -> None:
        for node in (0, 1):
            self.kill(node)
        for process in self.started:
            process.wait()
        for holder in self.holders:
            holder.stdin.close()  # ends it, and with it the namespace and its end of the cable
            holder.wait()


def hold(name: str, kinds: list[str], prefix: list[str] = []) -> subprocess.Popen:  # noqa: B006 - not changed
    """A process that does nothing, in namespaces of its own for network and host name, until this one closes its input or ends."""
    holder = subprocess.Popen(
        [*prefix, "unshare", *kinds, "--net", "--uts", "sh", "-c", f"hostname {name} && echo ready && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if holder.stdout.readline() != "ready\n":
        raise PermissionError(holder.stderr.read().strip())
    return holder


@contextmanager
def two_machines() -> Iterator[Machines]:
    """Skips the test where the system allows no namespaces."""
    try:
        machines = Machines()
    except (PermissionError, FileNotFoundError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        yield machines
    finally:
        machines.close()


def steps(text: str) -> list[int]:
    """Numbers of the steps that a run's output shows."""
    return [int(number) for number in re.findall(r"^step (\d+)/", text, flags=re.MULTILINE)]
