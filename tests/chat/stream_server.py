"""A server for tests that streams chat completions over real HTTP, as OpenAI's protocol has it."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def chunk(finish=None, **delta) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}


def usage(tokens: int) -> dict:
    return {
        **chunk(),
        "choices": [],
        "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens},
    }


def says(*texts: str, finish="stop", tokens=7) -> list[dict]:
    """The events of a reply in these pieces."""
    return [chunk(role="assistant", content=""), *(chunk(content=text) for text in texts), chunk(finish), usage(tokens)]


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.seen.append((self.path, headers, body))
        status, events = self.server.reply(body)
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if status == 200 else "application/json")
        self.end_headers()
        if status != 200:
            self.wfile.write(json.dumps(events).encode())
            return
        for number, event in enumerate(events):
            if number == self.server.pause_at:
                self.server.go.wait(60)
            data = event if isinstance(event, str) else json.dumps(event)
            self.wfile.write(f"data: {data}\n\n".encode())
            self.wfile.flush()

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that was stopped by hand; the tests look at what it says


@contextmanager
def streaming(reply, *, pause_at=None):
    """A server that answers each request as `reply(body) -> (status, events)` says; `server.seen` holds (path, headers, body) of each. Before event number `pause_at` it waits for `server.go`."""
    server = Server(("127.0.0.1", 0), Handler)
    server.seen, server.reply, server.pause_at, server.go = [], reply, pause_at, threading.Event()
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server
    finally:
        server.go.set()
        server.shutdown()
        server.server_close()
