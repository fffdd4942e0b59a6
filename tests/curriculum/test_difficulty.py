"""Counts of success: by hand, against counts that decay every row at every step, and through a saved state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from open_r1_kivqa.curriculum.difficulty import Difficulty
from open_r1_kivqa.errors import InputError

NAN = float("nan")


def observe(difficulty, step, groups, level=0, hit=True, truncated=0):
    """`groups`: row -> signals."""
    size = len(groups)
    difficulty.observe(
        step,
        level,
        np.array(list(groups), dtype=np.int64),
        np.array(list(groups.values()), dtype=np.float64),
        np.full(size, hit),
        np.full(size, truncated),
    )


def test_one_group_by_hand():
    difficulty = Difficulty(3, half_life=2)
    observe(difficulty, 0, {1: [1, 0, 1, 1]})
    counts = difficulty.counts(0)
    assert counts.n.tolist() == [[0, 0, 0], [0, 4, 0]]
    assert counts.s.tolist() == [[0, 0, 0], [0, 3, 0]]
    assert counts.sd[1, 1] == pytest.approx(4 * np.sqrt(0.75 * 0.25))  # population deviation, once a rollout
    half, quarter = difficulty.counts(2), difficulty.counts(4)
    assert (half.n[1, 1], half.s[1, 1]) == (2, 1.5)
    assert (quarter.n[1, 1], quarter.s[1, 1]) == (1, 0.75)
    assert difficulty.counts(1).n[1, 1] == pytest.approx(4 / np.sqrt(2))

    observe(difficulty, 2, {1: [0, 0, 0, 1], 2: [1, 1, 1, 1]}, hit=False)
    counts = difficulty.counts(2)
    assert counts.n.tolist() == [[0, 4, 4], [0, 2, 0]]
    assert counts.s.tolist() == [[0, 1, 4], [0, 1.5, 0]]
    assert counts.sd[0, 2] == 0
    assert difficulty.rollouts.tolist() == [0, 8, 4]


def test_without_decay_everything_stays():
    difficulty = Difficulty(2, half_life=float("inf"))
    observe(difficulty, 0, {0: [1, 0]})
    observe(difficulty, 10**6, {0: [1, 1]})
    assert (difficulty.counts(10**9).n[1, 0], difficulty.counts(10**9).s[1, 0]) == (4, 3)


def test_several_batches_of_one_step_add_up():
    difficulty = Difficulty(2, half_life=1)
    observe(difficulty, 3, {0: [1, 0]})
    observe(difficulty, 3, {0: [0.5, 0.25]})
    counts = difficulty.counts(3)
    assert (counts.n[1, 0], counts.s[1, 0]) == (4, 1.75)
    assert counts.sd[1, 0] == pytest.approx(2 * 0.5 + 2 * 0.125)


def test_carry_keeps_a_share():
    difficulty = Difficulty(1, half_life=2)
    observe(difficulty, 0, {0: [1, 1, 1, 0]})
    difficulty.carry(0.5)
    assert difficulty.counts(0).n[1, 0] == 2
    assert difficulty.counts(2).s[1, 0] == 0.75
    assert (difficulty.rollouts[0], difficulty.last_step[0]) == (4, 0)
    observe(difficulty, 2, {0: [1, 1, 1, 1]})
    assert difficulty.counts(2).n[1, 0] == 5
    difficulty.carry(0)
    assert not any(sums.any() for sums in difficulty.counts(2))
    assert difficulty.observed.tolist() == [True]


def test_missing_signals_are_no_observation():
    difficulty = Difficulty(2, half_life=2)
    observe(difficulty, 0, {0: [1, NAN, 0, NAN]})
    counts = difficulty.counts(0)
    assert (counts.n[1, 0], counts.s[1, 0], counts.sd[1, 0], difficulty.rollouts[0]) == (2, 1, 1, 2)
    before = difficulty.state_dict()
    observe(difficulty, 7, {0: [NAN] * 4, 1: [NAN] * 4}, level=3, hit=False, truncated=2)
    after = difficulty.state_dict()
    assert after.pop("truncated").tolist() == [2, 2] and before.pop("truncated").tolist() == [0, 0]
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert difficulty.observed.tolist() == [True, False]


def test_the_last_observation_is_kept():
    difficulty = Difficulty(3, half_life=2)
    assert difficulty.last_step.tolist() == difficulty.last_level.tolist() == difficulty.last_hit.tolist() == [-1] * 3
    observe(difficulty, 4, {0: [1, 0], 1: [0, 0]}, level=1)
    observe(difficulty, 5, {1: [0, 1]}, level=2, hit=False, truncated=1)
    assert difficulty.last_step.tolist() == [4, 5, -1]
    assert difficulty.last_level.tolist() == [1, 2, -1]
    assert difficulty.last_hit.tolist() == [1, 0, -1]
    assert difficulty.truncated.tolist() == [0, 1, 0]
    assert difficulty.observed.tolist() == [True, True, False]


@pytest.mark.parametrize("half_life", [0, -1, NAN])
def test_a_half_life_without_sense_is_refused(half_life):
    with pytest.raises(InputError, match="--curriculum_half_life"):
        Difficulty(1, half_life)


SIGNALS = st.lists(st.sampled_from([0.0, 1.0, 0.3, NAN]), min_size=3, max_size=3)
EVENTS = st.one_of(
    st.tuples(
        st.just("observe"),
        st.integers(0, 5),
        st.booleans(),
        st.dictionaries(st.integers(0, 3), SIGNALS, min_size=1, max_size=4),
    ),
    st.tuples(st.just("carry"), st.sampled_from([0.0, 0.5, 0.9])),
)


@given(st.lists(EVENTS, max_size=12), st.sampled_from([0.7, 3.0, 200.0, float("inf")]))
def test_decay_of_a_row_when_it_is_seen_equals_decay_of_all_rows_at_each_step(events, half_life):
    difficulty = Difficulty(4, half_life)
    n, s, sd = np.zeros((2, 4)), np.zeros((2, 4)), np.zeros((2, 4))
    now = 0
    for event in events:
        if event[0] == "carry":
            difficulty.carry(event[1])
            for sums in (n, s, sd):
                sums *= event[1]
            continue
        _, later, hit, groups = event
        for _ in range(later):
            for sums in (n, s, sd):
                sums *= 0.5 ** (1 / half_life)
        now += later
        observe(difficulty, now, groups, hit=hit)
        for row, signals in groups.items():
            known = [signal for signal in signals if signal == signal]
            if known:
                n[int(hit), row] += len(known)
                s[int(hit), row] += sum(known)
                sd[int(hit), row] += len(known) * np.std(known)
    for sums, expected in zip(difficulty.counts(now), (n, s, sd), strict=True):
        np.testing.assert_allclose(sums, expected, rtol=1e-10, atol=1e-12)


def test_a_saved_state_follows_its_rows(tmp_path):
    difficulty = Difficulty(3, half_life=5)
    observe(difficulty, 1, {0: [1, 0], 2: [0.3, NAN]}, level=2, truncated=1)
    observe(difficulty, 4, {0: [1, 1]}, hit=False)
    np.savez(tmp_path / "state.npz", **difficulty.state_dict())
    state = dict(np.load(tmp_path / "state.npz", allow_pickle=False))

    same = Difficulty(3, half_life=5)
    same.load_state_dict(state, np.arange(3), np.arange(3))
    for name, values in difficulty.state_dict().items():
        np.testing.assert_array_equal(same.state_dict()[name], values)
        assert same.state_dict()[name].dtype == values.dtype

    other = Difficulty(4, half_life=5)
    observe(other, 0, {0: [1, 1], 1: [1, 1], 2: [1, 1], 3: [1, 1]}, truncated=1)
    other.load_state_dict(state, current=np.array([3, 1]), saved=np.array([0, 2]))
    for sums, expected in zip(other.counts(6), difficulty.counts(6), strict=True):
        np.testing.assert_array_equal(sums[:, [3, 1]], expected[:, [0, 2]])
        assert not sums[:, [0, 2]].any()
    assert other.last_step.tolist() == [-1, 1, -1, 4]
    assert other.last_level.tolist() == [-1, 2, -1, 0]
    assert other.last_hit.tolist() == [-1, 1, -1, 0]
    assert other.truncated.tolist() == [0, 1, 0, 1]
    assert other.rollouts.tolist() == [0, 1, 0, 4]


def test_a_state_is_a_copy():
    difficulty = Difficulty(1, half_life=5)
    state = difficulty.state_dict()
    observe(difficulty, 1, {0: [1, 0]})
    assert state["n"].sum() == 0 and state["last_step"][0] == -1
