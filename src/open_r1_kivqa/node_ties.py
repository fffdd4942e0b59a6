"""A rank's tie to the watch over the other machines (node_watch.py). Without effect on one machine.

`watched(main)` runs an entry beside the watch, which ends this node's ranks when another node is lost or has failed.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

from . import node_watch
from .errors import InputError
from .nodes import host_names, launch_store, several_nodes, speaks, this_node


def watched(main: Callable[[], object]) -> Callable[[], object]:
    """`main` beside a watch over the other nodes; on one machine `main` itself."""
    return (lambda: under_watch(main)) if several_nodes() else main


def under_watch(main: Callable[[], object]):
    """What a rank tells its node's watch: that it is done, or how it ended. After an error the watch may know of another node that caused it; then this process ends with node_watch.LOST."""
    tie = Tie(start_watch())
    try:
        result = main()
    except InputError:
        tie.say("refused")
        tie.wait()
        raise
    except SystemExit as end:
        tie.say("failed" if end.code else "done")
        if end.code:
            tie.wait()
        raise
    except BaseException:
        traceback.print_exc()  # now, so that the watch's line comes last
        tie.say("failed")
        tie.wait()
        sys.exit(1)
    tie.say("done")
    return result


def start_watch() -> str:
    """Name of the unix socket at which this node's watch listens; its local rank 0 starts it.

    Raises:
        InputError: a node did not come, KIVQA_NODE_TIMEOUT or KIVQA_NODE_PORT cannot be used.
    """
    hosts, store, node = host_names(), launch_store(), this_node()
    if speaks():
        name, nodes_socket = f"kivqa-{secrets.token_hex(16)}", None
        ranks_socket = socket.socket(socket.AF_UNIX)
        ranks_socket.bind(f"\0{name}")
        ranks_socket.listen(int(os.environ["LOCAL_WORLD_SIZE"]))
        if node == 0:
            nodes_socket = listen(setting("KIVQA_NODE_PORT", 0, 0, 65535))
            store.set("watch", json.dumps([nodes_socket.getsockname()[1], secrets.token_hex(16)]))
        port, token = json.loads(store.get("watch"))
        settings = {
            "node": node,
            "hosts": hosts,
            "ranks": int(os.environ["LOCAL_WORLD_SIZE"]),
            "address": [os.environ["MASTER_ADDR"], port],
            "token": token,
            "launcher": os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else None,
            "limit": setting("KIVQA_NODE_TIMEOUT", 30, 2, 86400),
            "ranks_socket": ranks_socket.fileno(),
            "nodes_socket": nodes_socket and nodes_socket.fileno(),
        }
        subprocess.Popen(
            [sys.executable, "-P", node_watch.__file__, json.dumps(settings)],
            pass_fds=[one.fileno() for one in (ranks_socket, nodes_socket) if one is not None],
            start_new_session=True,  # torchrun's signals to this rank are not for it
        )
        store.set(f"watch/{node}", name)
    return store.get(f"watch/{node}").decode()


def setting(name: str, default: int, lowest: int, highest: int) -> int:
    value = os.environ.get(name) or str(default)
    if not value.isdigit() or not lowest <= int(value) <= highest:
        raise InputError(f"{name}={value}: a whole number from {lowest} to {highest} is wanted.")
    return int(value)


def listen(port: int) -> socket.socket:
    """A TCP socket listening on all addresses; port 0 lets the system choose."""
    dual = socket.has_dualstack_ipv6()
    try:
        return socket.create_server(("", port), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual)
    except OSError as error:
        raise InputError(f"KIVQA_NODE_PORT={port}: {error.strerror}; give a free port, or leave it out.") from error


class Tie:
    """A rank's connection to its node's watch."""

    def __init__(self, name: str):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"\0{name}")
        self.released = threading.Event()
        self.say(os.environ["RANK"])
        threading.Thread(target=self.obey, daemon=True).start()

    def say(self, word: str) -> None:
        with suppress(OSError):  # without a watch there is nobody to tell
            self.socket.sendall(f"{word}\n".encode())

    def obey(self) -> None:
        try:
            word = self.socket.recv(1)
        except OSError:
            word = b""
        if word == node_watch.END:
            os._exit(node_watch.LOST)  # a collective that hangs would hold up any other way out
        self.released.set()

    def wait(self) -> None:
        """Until the watch knows whose error it was."""
        self.released.wait(node_watch.GRACE + 5)
