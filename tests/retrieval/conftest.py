import pytest


@pytest.fixture
def world(tmp_path):
    from retrieve_world import World  # here, so that the other tests don't wait for it

    return World(tmp_path)
