"""Compiled loops leave torch's threads alone."""

import os
import subprocess
import sys

SCRIPT = """
import numpy as np
import torch

before = torch.get_num_threads()
from open_r1_kivqa.curriculum.beta import teaching
from open_r1_kivqa.curriculum.graph import SampleGraph
from open_r1_kivqa.curriculum.propagation import Propagator

size = 3000
places = np.arange(size)
graph = SampleGraph.from_edges(
    np.array([str(i) for i in places]), np.zeros(size, np.uint64), places, np.roll(places, 1), np.ones(size), {}
)
Propagator(graph).paper(np.ones(size))
Propagator(graph).spread(np.ones((size, 4)))
teaching(np.ones(size), np.ones(size), 4)
print(before, torch.get_num_threads(), torch.ones(300, 300).mm(torch.ones(300, 300))[0, 0].item())
"""


def test_torch_keeps_its_number_of_threads():
    """With one thread for torch and three for the loops; numba's own choice of a layer would give torch three."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "3"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "1", "300.0"], done.stderr
