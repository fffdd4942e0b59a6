import json

import pytest
from bridging import IMAGES, Run, factbook
from scripted_endpoint import Script, serving


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path / "kivqa_cache"))


@pytest.fixture
def serve():
    with serving() as start:
        yield start


@pytest.fixture
def script():
    """Both models over the first embedded rows, all of whose answers are right."""
    return Script(json.loads(json.dumps(factbook(8))), IMAGES)


@pytest.fixture
def make_run(serve, script, tmp_path):
    """make_run(rows, act=script) -> (Run, Server)."""

    def make(rows=8, act=script):
        server = serve(act)
        return Run(tmp_path, factbook(rows) if isinstance(rows, int) else rows, server.url), server

    return make
