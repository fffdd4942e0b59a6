"""A judge for tests: a real HTTP server on this machine that acts as it is told."""

import json
import socket
import struct
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text, end="stop"):
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": end}]}


class Server(ThreadingHTTPServer):
    """Replies as `act(n, row)` says for the n-th request (from 1): a text for a verdict, or (status, headers, body). `row` is what the judge is shown."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, act):
        self.act, self.seen, self.headers = act, [], []
        self.open = self.most_open = 0
        self.guard = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        pass  # a client that gave up waiting; the tests look at what the judge says


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.guard:
            server.seen.append(body)
            server.headers.append(self.headers)
            number = len(server.seen)
            server.open += 1
            server.most_open = max(server.most_open, server.open)
        try:
            reply = server.act(number, json.loads(body["messages"][1]["content"].splitlines()[0]))
        finally:
            with server.guard:
                server.open -= 1
        if reply is None:  # close without a word
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        status, headers, content = (200, {}, completion(reply)) if isinstance(reply, str) else reply
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


def says_paris(number, row):
    return "correct" if "paris" in row["answer"].lower() else "incorrect"


@contextmanager
def serving():
    """A function act -> Server, running until the end of the context."""
    servers = []

    def serve(act) -> Server:
        servers.append(Server(act))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
