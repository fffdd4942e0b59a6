import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards import REWARDS, accuracy_reward, load_reward_functions
from open_r1_kivqa.rewards.loading import customised


def sample(answers, method="default"):
    row = {
        "id": "1",
        "conversations": [{"from": "human", "value": "What?"}, {"from": "gpt", "value": "Paris"}],
        "answers": answers,
    }
    return parse_row(row, image_folder="", reward_method=method, source="rows.jsonl:1")


def say(text):
    return [{"role": "assistant", "content": text}]


def test_accuracy_uses_each_rows_method_and_the_extraction_asked_for():
    samples = [sample(["Paris"]), sample({"range": [1, 3]}), sample(["x"], "numeric"), sample(["Paris"])]
    completions = [
        say("<think>a</think><answer>paris</answer>"),
        say("<think>a</think><answer>2</answer>"),
        say("<answer>1</answer>"),
        say("Paris"),
    ]
    strict, lenient = (load_reward_functions(["accuracy"], mode)[0] for mode in ("strict", "lenient"))
    assert strict([None] * 4, completions, sample=samples, solution=[""] * 4) == [1.0, 1.0, None, 0.0]
    assert lenient([None] * 4, completions, sample=samples, solution=[""] * 4) == [1.0, 1.0, None, 1.0]


def test_loaded_rewards_keep_order_and_have_names():
    assert [f.__name__ for f in load_reward_functions(["format", "accuracy"])] == ["format", "accuracy"]
    assert not any(asyncio.iscoroutinefunction(f) for f in load_reward_functions(list(REWARDS)))


def test_own_reward_from_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def short(prompts, completions, **kwargs):\n    return [1.0 / len(c) for c in completions]\nLIMIT = 3\n"
    )
    (short,) = load_reward_functions([f"{file}:short"])
    assert short.__name__ == "short"
    assert short([None], ["ab"]) == [0.5]
    with pytest.raises(InputError, match="has no 'long'; it defines short"):
        load_reward_functions([f"{file}:long"])
    with pytest.raises(InputError, match="'LIMIT' in .* is int, not a function"):
        load_reward_functions([f"{file}:LIMIT"])
    with pytest.raises(InputError, match="Two rewards are called 'short'"):
        load_reward_functions([f"{file}:short", f"{file}:short"])


FAULTS = {
    "raises": (
        "return [1.0 / (len(c) - 2) for c in completions]",
        r"failed with ZeroDivisionError: .*own.py, line 2\)",
    ),
    "short": ("return [1.0]", "returned 1 values; it must return a list of 2 numbers"),
    "nothing": ("pass", "returned NoneType"),
    "one": ("return 1.0", "returned float"),
    "words": ("return ['good', 'bad']", "returned 'good' for a completion"),
    "not_a_number": ("return [0.5, float('nan')]", "returned nan for a completion"),
}


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("name", FAULTS)
def test_own_reward_that_goes_wrong_while_training(name, kind, tmp_path):
    body, message = FAULTS[name]
    file = tmp_path / "own.py"
    file.write_text(f"{kind} {name}(prompts, completions, **kwargs):\n    {body}\n")
    (reward,) = load_reward_functions([f"{file}:{name}"])
    assert asyncio.iscoroutinefunction(reward) == (kind == "async def")
    with pytest.raises(InputError, match=f"Reward '{file}:{name}' {message}"):
        called = reward(prompts=[None] * 2, completions=["ab", "cd"], sample=[None] * 2)
        if kind == "async def":
            asyncio.run(called)


def test_own_reward_may_return_arrays(tmp_path):
    (tmp_path / "arrays.py").write_text(
        "import torch\ndef f(prompts, completions, **kwargs):\n    return torch.ones(2)\n"
        "def g(prompts, completions, **kwargs):\n    return [torch.tensor(0.5), None]\n"
    )
    f, g = load_reward_functions([f"{tmp_path}/arrays.py:f", f"{tmp_path}/arrays.py:g"])
    assert f([None] * 2, ["a", "b"]) == [1.0, 1.0] and g([None] * 2, ["a", "b"]) == [0.5, None]


def test_own_reward_that_cannot_be_called(tmp_path):
    (tmp_path / "narrow.py").write_text(
        "def f(prompts, completions):\n    return []\ndef g(texts, **kwargs):\n    return []\n"
    )
    for name in "fg":
        with pytest.raises(
            InputError, match=rf"cannot be called \(.*write it as def {name}\(prompts, completions, \*\*"
        ):
            load_reward_functions([f"{tmp_path}/narrow.py:{name}"])


def test_own_reward_that_cannot_be_loaded(tmp_path):
    with pytest.raises(InputError, match="there is no file .*none.py"):
        load_reward_functions([f"{tmp_path}/none.py:f"])
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    with pytest.raises(InputError, match="broken.py, line 2 could not be loaded"):
        load_reward_functions([f"{tmp_path}/broken.py:f"])
    (tmp_path / "needs.py").write_text("import no_such_package_at_all\n")
    with pytest.raises(InputError, match="ModuleNotFoundError"):
        load_reward_functions([f"{tmp_path}/needs.py:f"])


def test_unknown_names():
    with pytest.raises(InputError, match="Unknown reward 'acuracy'; known are accuracy, format"):
        load_reward_functions(["acuracy"])
    with pytest.raises(InputError, match="answer_extraction is 'loose'; choose one of strict, lenient"):
        load_reward_functions(["accuracy"], "loose")


def test_rewards_that_a_task_has_a_form_of_its_own_for():
    assert customised(["accuracy", "format", "length"], "rec") == ["accuracy", "format_rec", "length"]
    with pytest.raises(InputError, match="nothing to act on with --task_type math: only rec"):
        customised(["format"], "math")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
SAMPLES = [sample(["Paris"]), sample({"range": [0, 1]})]


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(st.text(), JSON.map(json.dumps), st.text().map(lambda text: f"<think>a</think><answer>{text}</answer>"))
)
def test_no_completion_makes_a_reward_raise(text):
    for reward in load_reward_functions(list(REWARDS), "lenient"):
        values = reward([None] * 2, [say(text), text], sample=SAMPLES, completion_ids=[[1] * len(text)] * 2)
        assert len(values) == 2 and all(-1 <= value <= 1 for value in values)
        assert reward.__name__ in ("length", "repetition") or set(values) <= {0.0, 1.0}


def test_deeply_nested_json_is_only_text():
    assert accuracy_reward([None], ["<think>a</think><answer>" + "[" * 10**5 + "</answer>"], sample=SAMPLES[:1]) == [
        0.0
    ]
