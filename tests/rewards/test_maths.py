import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.rewards import maths, maths_worker
from open_r1_kivqa.rewards.maths import math, values


def sample(*answers, range=None):
    row = {
        "id": "1",
        "conversations": [{"from": "human", "value": "How much?"}],
        "answers": {"range": range} if range else list(answers),
    }
    return parse_row(row, image_folder="", reward_method="math", source="rows.jsonl:1")


@pytest.mark.parametrize(
    "answer, reference",
    [
        # as text
        ("x", "x"),
        ("Monday", "monday"),
        (r"\text{Monday}", "Monday"),
        (r"\boxed{\text{B}}", "B"),
        ("(-∞, 3]", r"(-\infty,3]"),
        ("nan", "nan"),
        # as numbers
        ("5.", "5"),
        ("007", "7"),
        ("−5", "-5"),
        ("1,000", "1000"),
        ("1 000", "1000"),
        ("0,5", "0.5"),
        ("٥", "5"),
        ("$5", "5"),
        (r"\$5", "5"),
        ("**5**", "5"),
        ("3.1415927", "3.1415926536"),  # six decimals
        # by math-verify
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\dfrac12", "0.5"),
        ("½", "0.5"),
        ("2½", "2.5"),
        ("2 1/2", "2.5"),
        ("1/3", "0.333333"),
        ("50%", "0.5"),
        ("50%", "50"),
        (r"\frac{1}{2}\%", "0.005"),
        ("1e5", "100000"),
        ("3.0×10⁵", "300000"),
        ("1.5 million", "1500000"),
        ("10^12", "1000000000000"),
        ("10^{400}", "100^{200}"),
        ("2^-3", "1/8"),
        ("2**3", "8"),
        ("√8", r"2\sqrt{2}"),
        ("sqrt(8)", "2sqrt(2)"),
        ("x²+1", "1 + x^2"),
        ("sin(x)", r"\sin x"),
        ("π/4", r"\frac{\pi}{4}"),
        ("90°", "90"),
        ("3 cm", "3"),
        ("3cm", r"3\text{ cm}"),
        (r"12\text{ m}^2", "12"),
        ("x = 5 cm", "5"),
        ("AB = 5 cm", "5"),
        ("18 cm²", "18"),
        ("18", "18 cm^2"),
        ("9.8 m/s^2", "9.8"),
        ("45 km/h", "45"),
        ("5 €", "5"),
        ("≈ 3.14", "3.14"),
        (r"\log_2 8", "3"),
        ("y=2x+1", "2x+1"),
        ("the angle is 60^\\circ", "60"),
        ("f(x) = x^2", "x^2"),
        (r"\angle ABC = 60^\circ", "60"),
        ("x = 3 + 4 = 7", "7"),
        ("7 = x", "x=7"),
        ("x>3", "3<x"),
        ("5, 6", "6, 5"),
        ("x=1 or x=2", "1, 2"),
        (r"\{1,2\}", "2, 1"),
        ("(3, 4)", "(3,4)"),
        ("$(3,4)$ and $(5,6)$", "(5,6), (3,4)"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
        # the final answer in prose
        ("The answer is 5.", "5"),
        ("The answer is 7, since 3+4=7.", "7"),
        ("Let a be 3. The answer is 4", "4"),
        ("3 + 4 = 7", "7"),
        ("5 apples", "5"),
        ("3 1/2 cups", "3.5"),
        ("It is 1.2cm long.", "1.2"),
        ("The area is $12$ square metres.", "12"),
        (r"First 3, then 4, so \boxed{7}.", "7"),
        (r"$\boxed{x = \frac{1}{2}}$", ".5"),
        (r"\boxed{5} or rather \boxed{5.0}", "5"),
        ("5", "3 + 2 = 5\n#### 5"),
    ],
)
def test_right(answer, reference):
    assert math(answer, sample(reference)) == 1.0


@pytest.mark.parametrize(
    "answer, reference",
    [
        ("", "5"),
        (r"\boxed{}", "5"),
        (r"\boxed{5", "5"),
        ("5-", "5"),
        ("-5", "5"),
        ("1000001", "1000000"),
        ("0.333", "1/3"),
        # case counts
        ("X", "x"),
        ("ab", "AB"),
        ("e", "E"),
        ("x^2", "X^2"),
        # several answers
        ("5 or 6", "5"),
        ("5 or 6", "6"),
        ("5 6", "5"),
        ("5 6", "11"),
        ("5. 6", "5.6"),
        ("5; maybe 6", "6"),
        ("maybe 5, maybe 6", "6"),
        ("between 5 and 6", "5"),
        ("5/6", "5"),
        (r"\pm 5", "5"),
        ("$5$ or 6", "5"),
        ("$5$, $6$", "6"),
        (r"\boxed{5} \boxed{6}", "6"),
        (r"5\text{ or maybe 6}", "5"),
        ("The answer is 5. No, the answer is 6.", "6"),
        (r"5 \in \{5, 6\}", "5"),
        ("5", "5, 6"),
        ("not 5", "5"),
        ("approximately 5 (or 7", "7"),
        ("the 3rd is 7", "7"),
        (r"approximately 5\quad $7$", "7"),
        ("5\nx=7", "7"),  # the equation 5x = 7
        ("5 cm = 7", "7"),
        ("3 + 5 = 7", "7"),
        ("x = 5 = 7", "7"),
        ("7_5", "7"),
        # what math-verify would let pass
        ("pots", "stop"),  # products of the same letters
        ("0.0000001", "0"),  # equal to six decimals
        ("3e-7", "0"),
        (r"2 \cdot 10^{-20}", "10^{-20}"),
        ("5", "5t"),  # t as a unit
        ("2x+3", "2x + 3t"),
        ("1.5", "1.5 million"),
        ("5", "5m"),
        ("2x", "2x g"),
        ("5", "5x^2"),
        ("5", "5 x^2"),
        ("x=5", "y=5"),
        ("(2,1)", "(1,2)"),
    ],
)
def test_wrong(answer, reference):
    assert math(answer, sample(reference)) == 0.0


def test_any_reference_and_rows_that_math_does_not_apply_to():
    assert math("0.5", sample("five", "1/2")) == 1.0
    assert math("0.5", sample("five", "1/3")) == 0.0
    assert math("5", sample(range=[1, 9])) is None


def test_values_that_are_not_begun():
    for answer in (
        "9^9^9^9^9",
        "9^{9^{9}}",
        "100000000!",
        "2^99999999",
        "(" * 10_000,
        "(" * 30 + "1" + ")" * 30,
        "9" * 501,
    ):
        assert math(answer, sample("5")) == 0.0
    assert math("9^{9^{9}}", sample("$9^{9^9}$")) == 1.0  # the same text
    assert maths.unfinished == 0


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(maths_worker, "SECONDS", 0.8)
    worker = maths_worker.Worker()
    yield worker
    worker.stop()


ENDLESS = r"\binom{1000000000}{500000000}"  # computed while it is read, in one call without a Python signal's chance


def test_a_worker_that_does_not_end_is_ended_and_the_next_answers(worker):
    assert worker.ask([["5"], ["5", "6"]]) == [[0], []]
    first = worker.process.pid
    assert worker.ask([["5"], [ENDLESS]]) is None
    assert worker.process.pid != first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert worker.ask([["5", "1/2", "10/2"], ["5"]]) == [[0, 2]]


def test_a_worker_that_hangs_without_computing_is_ended(worker, monkeypatch):
    assert worker.ask([["5"], ["5"]]) == [[0]]
    monkeypatch.setattr(maths_worker, "PATIENCE", 0.1)
    os.kill(worker.process.pid, signal.SIGSTOP)
    assert worker.ask([["5"], ["5"]]) is None
    monkeypatch.setattr(maths_worker, "PATIENCE", 60)
    assert worker.ask([["5"], ["5"]]) == [[0]]


def test_an_answer_to_a_question_cut_short_is_not_taken_for_the_next(worker, monkeypatch):
    assert worker.ask([["5"], ["5"]]) == [[0]]

    def interrupted(seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(worker, "line", interrupted)
        worker.ask([["5"], ["5"]])
    assert worker.ask([["5"], ["6"]]) == [[]]


def test_a_worker_that_cannot_start_is_an_error(worker, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="did not start .exit code 1.*installed for /bin/false"):
        worker.ask([["5"], ["5"]])


def test_an_answer_given_up_is_0_counted_and_said(worker, monkeypatch, caplog):
    monkeypatch.setattr(maths_worker, "_worker", worker)
    monkeypatch.setattr(maths, "unfinished", 0)
    with caplog.at_level(logging.WARNING):
        assert math(ENDLESS, sample("5")) == 0.0
        assert math(ENDLESS, sample("5")) == 0.0  # remembered
        assert math("5", sample(r"\frac{10}{2}")) == 1.0
    assert maths.unfinished == 2
    assert [record.message.count("rows.jsonl:1") for record in caplog.records] == [1]


def test_memory_is_limited(worker):
    assert worker.ask([["5"], ["5"]]) == [[0]]
    limits = open(f"/proc/{worker.process.pid}/limits").read()
    limit = next(line for line in limits.splitlines() if line.startswith("Max address space")).split()[3]
    assert 1 << 30 <= int(limit) < 4 << 30


def test_the_worker_loads_neither_this_package_nor_torch():
    code = (
        "import sys, runpy; sys.argv = ['worker', '2']; runpy.run_path(%r, run_name='__main__');"
        "sys.stderr = open(%r, 'w'); print([m for m in ('torch', 'numpy', 'open_r1_kivqa') if m in sys.modules], file=sys.stderr)"
    )
    said = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"maths_worker_{os.getpid()}")
    try:
        subprocess.run(
            [sys.executable, "-P", "-c", code % (maths_worker.__file__, said)], stdin=subprocess.DEVNULL, check=True
        )
        assert open(said).read().strip() == "[]"
    finally:
        os.remove(said)


def test_threads_share_one_worker():
    results = {}

    def ask(i):
        results[i] = math(f"{i}/2", sample(f"{i / 2}", f"{i}.5"))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(1, 13), 1.0)


SCRIPT = """
import json, os, sys
sys.path.insert(0, {folder!r})
from open_r1_kivqa.rewards import maths_worker
ask = lambda: maths_worker._worker.ask([["1/2"], ["0.5"]])
ask()
mine = maths_worker._worker.process.pid
read, write = os.pipe()
child = os.fork()
if child == 0:
    ask()
    os.write(write, str(maths_worker._worker.process.pid).encode())
    os.close(write)
    import time
    time.sleep(3600)
theirs = int(os.read(read, 20))
ask()
print(json.dumps([mine, maths_worker._worker.process.pid, theirs, child]), flush=True)
sys.stdin.read()
"""


def test_a_fork_has_its_own_worker_and_none_outlives_its_parent():
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(maths.__file__))))
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(folder=source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    mine, still_mine, theirs, child = json.loads(parent.stdout.readline())
    try:
        assert mine == still_mine != theirs
        parent.kill()  # SIGKILL: nothing of its own can tidy up
        parent.wait()
        wait_for_end(mine)  # though the fork lives on
        os.kill(theirs, 0)
    finally:
        os.kill(child, signal.SIGKILL)
    wait_for_end(theirs)
    parent.stdin.close(), parent.stdout.close()


def wait_for_end(pid):
    """Returns once the process is gone or only waits to be collected; pytest's own limit is the only one."""
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.02)


def test_values_of_a_text():
    assert values(r"\boxed{1} and \boxed{\boxed{2}} and \boxed{1}") == ["1", "2"]
    assert values("the sides are 3 and 4") == ["3", "4"]
    assert values("x" * 5000) == []
    assert values("x" * 5000 + r"\boxed{3}") == ["3"]
    assert values(" ".join(rf"\boxed{{{i}}}" for i in range(100))) == []
