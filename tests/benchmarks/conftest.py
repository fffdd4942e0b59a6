import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("KIVQA_CACHE", str(tmp_path_factory.mktemp("cache")))
