"""The watch over the machines of a run: a small process beside each node's ranks that notices when another node is gone.

    python node_watch.py '{"node": 1, "hosts": ["gpu-01", "gpu-02"], "ranks": 8, ...}'      started by node_ties.py

A process of its own is heard while a rank loads weights or compiles with the interpreter's lock held. Each node's watch says every two seconds that it is there: to the watch of node 0, and that one to
all others. A node counts as lost when its connection closes without a word or nothing is heard of it for `limit` seconds, which needs no answer of its machine. Ranks tell their own watch
how they end, so that a node with an error of its own is told apart. When another node is lost or has failed, the watch prints one line, ends its ranks, and torchrun does the rest.

Only the standard library is imported, so that it starts at once and takes 20 MB.
"""

import asyncio
import json
import os
import select
import signal
import socket
import struct
import sys

LOST = 75  # exit code of ranks that end because of another node; EX_TEMPFAIL of sysexits.h: start again later
GRACE = 2.0  # seconds from the first sign of trouble to the verdict: a killed node's last connection may close after our own error that it caused
PATIENCE = 10.0  # seconds that torchrun has to end after its ranks
END, GO_ON = b"x", b"g"  # what a watch tells its ranks: end now; it was your own error, end as you like


class Watch:
    """State of one node's watch.

    Args:
        node: number of this node; 0 hears all others.
        hosts: host name of every node.
        ranks: number of ranks on this node.
        address: host and port where node 0's watch listens.
        token: what a node must say first; keeps strangers out.
        limit: seconds without a word after which a node counts as lost.
        launcher: process id of this node's torchrun, or None.
        grace: see GRACE.
    """

    def __init__(
        self,
        node: int,
        hosts: list[str],
        ranks: int,
        address: tuple[str, int],
        token: str,
        limit: float,
        launcher: int | None = None,
        grace: float = GRACE,
    ):
        self.node, self.hosts, self.ranks = node, hosts, ranks
        self.address, self.token, self.limit, self.grace = address, token, limit, grace
        self.launcher = None if launcher is None else os.pidfd_open(launcher)  # which stays its own, unlike a number
        self.local: dict[asyncio.StreamWriter, int] = {}  # connections of this node's ranks, and their process ids
        self.words: list[str] = []  # how this node's ranks ended
        self.spoke: set[asyncio.StreamWriter] = set()  # of those ranks the connections
        self.peers: dict[int, asyncio.StreamWriter] = {}
        self.unsent: list[dict] = []  # until node 0 is reached
        self.done: set[int] = set()  # nodes that may go
        self.troubles: list[dict] = []  # node 0: in the order heard
        self.judged = False
        self.over = asyncio.Event()
        self.tasks: set[asyncio.Task] = set()

    async def run(self, ranks_socket: socket.socket, nodes_socket: socket.socket | None) -> None:
        """Watch until all nodes are done, or one is lost or has failed.

        Args:
            ranks_socket: unix socket, listening, for this node's ranks.
            nodes_socket: listening TCP socket for the other nodes; on node 0 only.
        """
        await asyncio.start_unix_server(self.serve_rank, sock=ranks_socket)
        if self.node == 0:
            await asyncio.start_server(self.serve_node, sock=nodes_socket)
            self.start(self.expect_all())
        else:
            self.start(self.follow())
        self.start(self.beat())
        self.start(self.expect_ranks())
        await self.over.wait()
        for writer in list(self.peers.values()):
            writer.close()
            try:
                async with asyncio.timeout(1):
                    await writer.wait_closed()  # the last message is on its way
            except (TimeoutError, OSError):
                pass  # to a node that is gone

    def start(self, coroutine) -> None:
        task = asyncio.create_task(coroutine)
        self.tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self.tasks.discard)

    # ------------------------------------------------------------------------------------------------ this node's ranks

    async def serve_rank(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hears how a rank ends: it says `done`, `failed` or `refused` (bad input, which it explains itself), or is gone without a word."""
        peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        process, user, _ = struct.unpack("3i", peer)
        if user != os.getuid():
            writer.close()
            return
        self.local[writer] = process
        rank = await hear_line(reader)
        word = await hear_line(reader) or "killed"
        self.words.append(word)
        self.spoke.add(writer)
        if word != "done":
            why = f"its rank {rank} was killed or crashed" if word == "killed" else f"in its rank {rank}"
            self.report({"kind": "failed", "node": self.node, "why": why})
        elif self.words.count("done") == self.ranks:
            self.report({"kind": "done", "node": self.node})
        await hear_line(reader)  # which says no more: until the process is gone
        del self.local[writer]

    async def expect_ranks(self) -> None:
        await asyncio.sleep(self.limit)
        if not self.local and not self.words:
            self.over.set()  # they were gone before they came

    # -------------------------------------------------------------------------------------------------------- all nodes

    def report(self, event: dict) -> None:
        """What happened on this node, to node 0."""
        if self.node == 0:
            self.judge(event)
        elif 0 in self.peers:
            send(self.peers[0], event)
        else:
            self.unsent.append(event)

    async def beat(self) -> None:
        while True:
            for writer in self.peers.values():
                send(writer, {"kind": "beat"})
            await asyncio.sleep(min(2.0, self.limit / 5))

    async def listen(self, reader: asyncio.StreamReader, hear) -> str:
        """Passes on what a node says until it is gone; returns in which way.

        Half the limit has to pass twice: a watch that was stopped itself for a while first reads what has come meanwhile.
        """
        missed = 0
        while True:
            try:
                async with asyncio.timeout(self.limit / 2):
                    line = await reader.readline()
            except TimeoutError:
                missed += 1
                if missed == 2:
                    return f"has not been heard for {self.limit:g} s"
                continue
            except OSError:
                line = b""
            if not line:
                return "is gone: its connection closed without a word"
            missed = 0
            hear(json.loads(line))

    # ----------------------------------------------------------------------------------------------------- on node 0

    async def serve_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self.limit):
                hello = json.loads(await reader.readline())
        except (TimeoutError, OSError, ValueError):
            hello = None
        if not isinstance(hello, dict) or hello.get("token") != self.token:
            writer.close()
            return
        node = hello["node"]
        self.peers[node] = writer
        why = await self.listen(reader, self.judge)
        del self.peers[node]
        if node not in self.done:
            self.judge({"kind": "lost", "node": node, "why": why})

    async def expect_all(self) -> None:
        await asyncio.sleep(self.limit)
        for node in range(1, len(self.hosts)):
            if node not in self.peers and node not in self.done:
                self.judge(
                    {"kind": "lost", "node": node, "why": f"did not reach {where(self.address)} from its machine"}
                )

    def judge(self, event: dict) -> None:
        """Takes in what happened to a node. All done: the watch is over. The first trouble leads to the verdict, at once if a node is lost."""
        if event["kind"] == "beat":
            return
        if event["kind"] == "lost":
            self.troubles.insert(0, event)
            self.start(self.give_verdict(after=0))
            return
        if event["kind"] == "failed":
            self.troubles.append(event)
            self.start(self.give_verdict(after=self.grace))
            return
        self.done.add(event["node"])
        if event["node"] == 0:
            self.tell_nodes(event)
        if len(self.done) == len(self.hosts) and not self.troubles:
            self.tell_nodes({"kind": "over"})
            self.over.set()

    async def give_verdict(self, after: float) -> None:
        await asyncio.sleep(after)
        if self.judged:
            return
        self.judged = True
        self.tell_nodes(self.troubles[0])
        await self.act(self.troubles[0])

    def tell_nodes(self, event: dict) -> None:
        for writer in self.peers.values():
            send(writer, event)

    # ------------------------------------------------------------------------------------------------ on the other nodes

    async def follow(self) -> None:
        """Stays connected to node 0 and does what it says."""
        try:
            async with asyncio.timeout(self.limit):
                reader, writer = await self.reach()
        except TimeoutError:
            await self.act(
                {"kind": "lost", "node": 0, "why": f"does not answer at {where(self.address)}: all ports between the nodes must be open (or that of KIVQA_NODE_PORT and those of NCCL)"}
            )  # fmt: skip
            return
        send(writer, {"token": self.token, "node": self.node})
        self.peers[0] = writer
        for event in self.unsent:
            send(writer, event)
        why = await self.listen(reader, self.obey)
        if 0 in self.done or self.words.count("done") == self.ranks:
            self.over.set()  # it was done, or this node is
        elif not self.judged:
            await self.act({"kind": "lost", "node": 0, "why": why})

    def obey(self, event: dict) -> None:
        if event["kind"] == "done":
            self.done.add(event["node"])
        elif event["kind"] == "over":
            self.over.set()
        elif event["kind"] != "beat" and not self.judged:
            self.judged = True
            self.start(self.act(event))

    async def reach(self):
        while True:
            try:
                return await asyncio.open_connection(*self.address)
            except OSError:
                await asyncio.sleep(0.5)

    # ----------------------------------------------------------------------------------------------------- what follows

    async def act(self, verdict: dict) -> None:
        """Say which node is the cause and end this node's ranks, or let them end by themselves if it is this one."""
        if self.node == 0 and verdict["kind"] == "failed":
            await self.until_empty(
                self.peers
            )  # the others first: torchrun's store goes with node 0, and they would say so with a traceback
        own = verdict["node"] == self.node or "refused" in self.words  # then what has to be said is on the screen
        if not own:
            print(self.line(verdict), file=sys.stderr, flush=True)
        ending = [
            writer for writer in self.local if not own or writer not in self.spoke
        ]  # among them those that wait for the failed one
        for writer in self.local:
            writer.write(END if writer in ending else GO_ON)
        await self.until_empty(self.local)
        for writer in ending:
            if writer in self.local:  # it holds the interpreter's lock
                os.kill(self.local[writer], signal.SIGKILL)
        if verdict["kind"] == "lost" and self.launcher is not None:
            await self.end_launcher()
        self.over.set()

    async def until_empty(self, connections: dict) -> None:
        """For 3 seconds at most."""
        for _ in range(30):
            if not connections:
                return
            await asyncio.sleep(0.1)

    async def end_launcher(self) -> None:
        """torchrun ends when its ranks have, but where node 0 is silent it goes on asking the store there for many minutes."""
        for _ in range(int(10 * PATIENCE)):
            if select.select([self.launcher], [], [], 0)[0]:
                return
            await asyncio.sleep(0.1)
        print(f"torchrun has not ended by itself within {PATIENCE:g} s: it is killed.", file=sys.stderr, flush=True)
        signal.pidfd_send_signal(self.launcher, signal.SIGKILL)

    def line(self, verdict: dict) -> str:
        name = f"node {verdict['node']} ({self.hosts[verdict['node']]})"
        here = f"node {self.node} ({self.hosts[self.node]})"
        if verdict["kind"] == "failed":
            return f"error: {name} ended with an error ({verdict['why']}): see its output. So {here} ends too."
        return (
            f"error: {name} {verdict['why']}. So {here} ends too. Once it is back, start again on all nodes with --resume_from_checkpoint true: "
            "that goes on from the newest complete checkpoint of --output_dir."
        )


async def hear_line(reader: asyncio.StreamReader) -> str:
    """The next line, "" if the other end is gone."""
    try:
        return (await reader.readline()).decode().strip()
    except OSError:
        return ""


def send(writer: asyncio.StreamWriter, event: dict) -> None:
    if not writer.is_closing():
        writer.write(json.dumps(event).encode() + b"\n")


def where(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def main(settings: dict) -> None:
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
    ):  # meant for the ranks, which may still save; the watch ends after them
        signal.signal(number, signal.SIG_IGN)
    ranks_socket = socket.socket(fileno=settings.pop("ranks_socket"))
    nodes_socket = settings.pop("nodes_socket")
    nodes_socket = None if nodes_socket is None else socket.socket(fileno=nodes_socket)

    async def watch() -> None:
        await Watch(**settings).run(ranks_socket, nodes_socket)
        os._exit(0)  # asyncio would print a traceback for each connection that is still open

    asyncio.run(watch())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
