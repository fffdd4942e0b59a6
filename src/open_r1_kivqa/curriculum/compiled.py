"""numba for the loops of this package, with threads of its own.

Numba's default layer shares OpenMP with torch, and its first parallel loop sets the process's number of OpenMP threads to all cores. From then on torch would compute with that many as well, whatever
OMP_NUM_THREADS says: several processes on one machine then wait for each other, many times slower.
"""

from numba import config, njit, prange

config.THREADING_LAYER = "workqueue"

__all__ = ["njit", "prange"]
