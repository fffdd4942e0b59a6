"""pytest plugin (loaded by pyproject.toml): seconds per test group, so that a slow group is seen when it gets slow.

A group is a folder below tests/, or a file that lies in tests/ itself. Set-up and tear-down count; a fixture that a whole
session shares counts for the group that asked for it first.
"""

from collections import Counter

import pytest

seconds: Counter[str] = Counter()
tests: Counter[str] = Counter()


def group(nodeid: str) -> str:
    """The group of a test: `tests/rewards/test_x.py::test_y` -> `tests/rewards`, `tests/test_cli.py::test_y` -> `tests/test_cli.py`."""
    parts = nodeid.split("::")[0].split("/")
    return "/".join(parts[:2])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[group(report.nodeid)] += report.duration
    tests[group(report.nodeid)] += report.when == "call"


def pytest_terminal_summary(terminalreporter) -> None:
    if not seconds:
        return
    terminalreporter.section("seconds per group")
    for name, spent in seconds.most_common():
        terminalreporter.line(f"{spent:8.1f} s  {tests[name]:4d} tests  {name}")
    terminalreporter.line(f"{sum(seconds.values()):8.1f} s  {sum(tests.values()):4d} tests  in all")
