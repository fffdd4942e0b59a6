"""An endpoint for tests and for trying `kivqa bridge` without a model: a real HTTP server that speaks OpenAI's chat completions and answers by a script.

    python tests/cold_start/scripted_endpoint.py --port 8000 --data_file_paths rows.jsonl --image_folders images

plays both models. It decodes each picture that it is sent, recognises it among the rows' own, and answers as the rows do, but for every tenth row each a wrong answer, a contradiction, a
response without tags and a refusal.
"""

import argparse
import base64
import io
import json
import socket
import struct
import threading
import time
import zlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image


def completion(text, end="stop", **message):
    """A chat completion; `message` adds fields to its message, as reasoning_content."""
    said = {"role": "assistant", "content": text, **message}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return {"choices": [{"index": 0, "message": said, "finish_reason": end}], "usage": usage}


def texts_of(request) -> str:
    """All that a request says."""
    parts = [message["content"] for message in request["messages"]]
    return "\n".join(
        part if isinstance(part, str) else "".join(block.get("text", "") for block in part) for part in parts
    )


def pictures_of(request) -> list[Image.Image]:
    """All pictures that a request sends, decoded."""
    found = []
    for message in request["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            if block["type"] == "image_url":
                head, _, data = block["image_url"]["url"].partition(";base64,")
                picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
                picture.load()
                assert head == f"data:image/{picture.format.lower()}"
                found.append(picture)
    return found


def is_check(request) -> bool:
    return "Reply with one word: ready." in texts_of(request)


class Server(ThreadingHTTPServer):
    """Replies as `act(n, request)` says to the n-th request (from 1) that is no check: a text, a whole body as a dict, (status, headers, body), or None to hang up without a word.

    Attributes:
        seen: requests but for checks. headers: theirs. checks: how many checks came. most_open: requests open at the same time, at most.
    """

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, act, port=0):
        self.act = act
        self.seen, self.headers, self.checks = [], [], 0
        self.open = self.most_open = 0
        self.guard = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, request, client_address):
        pass  # a client that was killed or gave up waiting

    def reply_to(self, request, headers):
        if is_check(request):
            self.checks += 1
            return "ready"
        with self.guard:
            self.seen.append(request)
            self.headers.append(headers)
            number = len(self.seen)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        try:
            return self.act(number, request)
        finally:
            with self.guard:
                self.open -= 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        reply = self.server.reply_to(request, self.headers)
        if reply is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True
            return
        if isinstance(reply, str):
            reply = completion(reply)
        status, headers, body = (200, {}, reply) if isinstance(reply, dict) else reply
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
        headers = {"Content-Type": "application/json", **length, **headers}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if int(headers.get("Content-Length", -1)) != len(body):  # more was promised: a body that is cut off
            self.close_connection = True

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    """A function act -> Server, running until the end of the context."""
    servers = []

    def serve(act, port=0) -> Server:
        servers.append(Server(act, port))
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


class Script:
    """Both models, over rows that it knows. It recognises pictures by their colours, and the reasoner finds the row by the picture's name in the description and the question.

    Attributes:
        answers: (picture's name, question) -> the answer to give; change it to have others.
        respond: (answer) -> the reasoner's reply.
        quotes: whether right reasoning is the line of the passages that ends with the answer, as the embedded tiny model reasons.
    """

    quotes = False

    def __init__(self, rows: list[dict], image_folder: str):
        self.names = sorted({row["image"] for row in rows if row.get("image")})
        self.looks = np.stack([_look(Image.open(f"{image_folder}/{name}")) for name in self.names])
        self.answers = {(row["image"], _question(row)): _answer(row) for row in rows if row.get("image")}
        self.respond = lambda answer: (
            f"<think>According to the description, the flag is shown. So it is {answer}.</think><answer>{answer}</answer>"
        )

    def __call__(self, number, request):
        text, pictures = texts_of(request), pictures_of(request)
        if pictures:
            distances = np.abs(self.looks - _look(pictures[0])).sum(axis=(1, 2, 3))
            name = self.names[int(distances.argmin())]
            if "Caption: picture" in text:  # the pseudo-CoT comes back to be described
                return f"Picture {name}: a flag, {pictures[0].width} x {pictures[0].height} pixels."
            return f"Caption: picture {name}.\nReasoning: its colours say which country it is."
        found = [
            answer
            for (name, question), answer in self.answers.items()
            if f"Picture {name}: " in text and f"Question: {question}\n" in text
        ]
        if len(found) != 1:
            return "<think>No idea.</think><answer>nothing</answer>"
        reply = self.respond(found[0])
        lines = [line for line in text.splitlines() if line.endswith(f": {found[0]}")]
        if self.quotes and lines and reply == right(found[0]):
            return f"<think>{lines[-1]}</think><answer>{found[0]}</answer>"
        return reply


def _look(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("RGB").resize((8, 8)), dtype=np.int32)


def _question(row) -> str:
    turns = [turn["value"] for turn in row["conversations"] if turn["from"] == "human"]
    return turns[-1].replace("<image>", "").strip()


def _answer(row) -> str:
    answers = row.get("answers") or [row["conversations"][-1]["value"]]
    return str(answers["range"][0]) if isinstance(answers, dict) else answers[0]


def mixed(answer: str) -> str:
    """Mostly right, and every fault now and then."""
    fault = zlib.crc32(answer.encode()) % 10
    if fault == 0:
        return "<think>It could be anything, say Atlantis.</think><answer>Atlantis</answer>"
    if fault == 1:
        return f"<think>The answer is Atlantis.</think><answer>{answer}</answer>"
    if fault == 2:
        return f"It is {answer}."
    if fault == 3:
        return "I'm sorry, but I can't assist with that."
    return right(answer)


def right(answer: str) -> str:
    return f"<think>The picture shows a flag. As the description says, it is {answer}.</think><answer>{answer}</answer>"


def main():
    flags = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    flags.add_argument("--port", type=int, default=8000)
    flags.add_argument("--data_file_paths", required=True, help="one jsonl file")
    flags.add_argument("--image_folders", required=True, help="its image folder")
    flags.add_argument("--seconds", type=float, default=0.2, help="how long each reply takes")
    flags.add_argument("--quotes", action="store_true", help="right reasoning is the passage's line with the answer")
    flags = flags.parse_args()
    with open(flags.data_file_paths, encoding="utf-8") as file:
        script = Script([json.loads(line) for line in file], flags.image_folders)
    script.respond, script.quotes = mixed, flags.quotes

    def slowly(number, request):
        time.sleep(flags.seconds)
        return script(number, request)

    server = Server(slowly, flags.port)
    print(f"ready at {server.url}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
