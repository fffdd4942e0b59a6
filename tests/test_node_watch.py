"""The watch process itself, two or three of them on this machine, with this test in the place of their ranks."""

import json
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from open_r1_kivqa import node_watch
from open_r1_kivqa.node_ties import listen

LIMIT = 2  # seconds
GRACE = 0.5


class Node:
    """One node's watch, and its ranks as sockets."""

    def __init__(self, node: int, number: int, port: int, token: str, nodes_socket=None, ranks: int = 1):
        ranks_socket = socket.socket(socket.AF_UNIX)
        self.name = f"\0test-{secrets.token_hex(8)}"
        ranks_socket.bind(self.name)
        ranks_socket.listen()
        sockets = [one for one in (ranks_socket, nodes_socket) if one is not None]
        settings = {
            "node": node,
            "hosts": [f"host-{i}" for i in range(number)],
            "ranks": ranks,
            "address": ["127.0.0.1", port],
            "token": token,
            "limit": LIMIT,
            "grace": GRACE,
            "ranks_socket": ranks_socket.fileno(),
            "nodes_socket": nodes_socket and nodes_socket.fileno(),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", node_watch.__file__, json.dumps(settings)],
            pass_fds=[one.fileno() for one in sockets],
            stderr=subprocess.PIPE,
            text=True,
        )
        self.ranks, self.heard = [], []
        for rank in range(ranks):
            self.ranks.append(socket.socket(socket.AF_UNIX))
            self.ranks[-1].connect(self.name)
            self.heard.append(queue.Queue())
            threading.Thread(target=self.obey, args=(rank,), daemon=True).start()
            self.say(rank, str(node * ranks + rank))
        for one in sockets:
            one.close()

    def say(self, rank: int, word: str) -> None:
        self.ranks[rank].sendall(f"{word}\n".encode())

    def obey(self, rank: int) -> None:
        """Ends at the first word, as a rank does: the watch kills the process of one that does not, which is this one."""
        self.heard[rank].put(self.ranks[rank].recv(1))
        self.die(rank)

    def die(self, rank: int) -> None:
        with suppress(OSError):  # it is closed already
            self.ranks[rank].shutdown(socket.SHUT_RDWR)
        self.ranks[rank].close()

    def told(self, rank: int = 0) -> bytes:
        return self.heard[rank].get(timeout=20)

    def end(self) -> str:
        """What it printed until it ended."""
        for rank in range(len(self.ranks)):
            self.die(rank)
        return self.process.communicate(timeout=20)[1]


def connections(port: int) -> int:
    """Established TCP connections whose own end is this port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return sum(line[1].endswith(f":{port:04X}") and line[3] == "01" for line in lines)


@pytest.fixture
def nodes():
    """nodes(3): the watches of three nodes, node 0 first."""
    started = []

    def start(number: int, ranks: int = 1) -> list[Node]:
        nodes_socket, token = listen(0), secrets.token_hex(8)
        port = nodes_socket.getsockname()[1]
        for node in range(number):
            started.append(Node(node, number, port, token, nodes_socket if node == 0 else None, ranks))
        while connections(port) < number - 1:
            time.sleep(0.05)
        return started

    yield start
    for node in started:
        node.process.kill()
        node.process.communicate()


def test_all_done_ends_without_a_word(nodes):
    three = nodes(3)
    for node in three:
        node.say(0, "done")
    assert [(node.end(), node.process.returncode) for node in three] == [("", 0)] * 3


def test_a_node_that_is_done_may_go_while_the_others_go_on(nodes):
    one, two = nodes(2)
    one.say(0, "done")
    one.die(0)
    with pytest.raises(subprocess.TimeoutExpired):
        two.process.wait(LIMIT + 1)
    two.say(0, "done")
    assert one.end() == two.end() == ""


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_told_to_the_others_and_left_to_its_own_node(nodes, failing):
    three = nodes(3)
    three[failing].say(0, "failed")
    assert [node.told() for node in three] == [b"g" if node is three[failing] else b"x" for node in three]
    texts = [node.end() for node in three]
    other = 2
    assert texts[failing] == ""
    assert texts[other] == (
        f"error: node {failing} (host-{failing}) ended with an error (in its rank {failing}): see its output. So node {other} (host-{other}) ends too.\n"
    )


def test_a_killed_rank_is_named(nodes):
    one, two = nodes(2, ranks=2)
    two.say(0, "done")
    two.die(1)
    assert one.told(0) == one.told(1) == b"x"
    assert "node 1 (host-1) ended with an error (its rank 3 was killed or crashed)" in one.end()
    assert two.told(0) == b"g" and two.end() == ""


def test_ranks_that_wait_for_a_failed_one_of_their_node_end_as_well(nodes):
    one, two = nodes(2, ranks=2)
    one.say(0, "failed")
    assert [one.told(0), one.told(1), two.told(0), two.told(1)] == [b"g", b"x", b"x", b"x"]
    assert one.end() == "" and "node 0 (host-0) ended with an error (in its rank 0)" in two.end()


@pytest.mark.parametrize("lost", [0, 1])
def test_a_killed_node_is_lost_even_if_its_ranks_and_our_own_fail_first(nodes, lost):
    """What SIGKILL of everything on a node looks like: its rank goes first, and our collective fails, before its watch is gone."""
    three = nodes(3)
    three[lost].die(0)
    three[2].say(0, "failed")
    three[lost].process.kill()
    assert three[2].told() == b"x"
    text = three[2].end()
    assert text.startswith(f"error: node {lost} (host-{lost}) is gone: its connection closed without a word.")
    assert "--resume_from_checkpoint true" in text and text.count("\n") == 1


@pytest.mark.parametrize("frozen", [0, 1])
def test_silence_is_noticed_without_a_closed_connection(nodes, frozen):
    two = nodes(2)
    two[frozen].process.send_signal(signal.SIGSTOP)
    other = two[1 - frozen]
    assert other.told() == b"x"
    assert f"node {frozen} (host-{frozen}) has not been heard for {LIMIT} s" in other.end()


def test_a_watch_that_was_stopped_itself_for_a_while_goes_on(nodes):
    one, two = nodes(2)
    with pytest.raises(subprocess.TimeoutExpired):
        two.process.wait(1)
    two.process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        one.process.wait(0.7 * LIMIT)
    two.process.send_signal(signal.SIGCONT)
    for node in (one, two):
        node.say(0, "done")
    assert one.end() == two.end() == ""


def test_bad_input_on_every_node_adds_no_line(nodes):
    two = nodes(2)
    for node in two:
        node.say(0, "refused")
    assert [node.told() for node in two] == [b"g", b"g"]
    assert [node.end() for node in two] == ["", ""]


def test_strangers_are_not_listened_to(nodes):
    nodes_socket, token = listen(0), "right"
    port = nodes_socket.getsockname()[1]
    one = Node(0, 2, port, token, nodes_socket)
    try:
        for hello in (
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"token": "wrong", "node": 1}\n{"kind": "failed", "node": 1}\n',
            b"",
        ):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(hello)
        two = Node(1, 2, port, token)
        for node in (one, two):
            node.say(0, "done")
        assert one.end() == two.end() == ""
    finally:
        one.process.kill()
        one.process.communicate()


def test_a_node_that_cannot_be_reached_is_named(nodes):
    one = Node(1, 2, 1, "token")  # nothing listens at port 1
    assert one.told() == b"x"
    assert "node 0 (host-0) does not answer at 127.0.0.1:1: all ports" in one.end()


def test_a_rank_that_does_not_react_is_killed(nodes):
    one, two = nodes(2)
    code = "import socket, sys; rank = socket.socket(socket.AF_UNIX); rank.connect(chr(0) + sys.argv[1]); rank.sendall(b'7\\n'); print(); sys.stdin.read()"
    stuck = subprocess.Popen(
        [sys.executable, "-c", code, one.name[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )  # fmt: skip
    stuck.stdout.readline()
    two.process.kill()
    assert one.told() == b"x"
    one.die(0)
    assert stuck.wait(20) == -signal.SIGKILL
    assert "node 1 (host-1) is gone" in one.end()
