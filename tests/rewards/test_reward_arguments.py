"""Flags of the rewards: what is refused, and that TRL's parser takes them."""

import re

import pytest

from open_r1_kivqa import entry
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.rewards.arguments import JudgeArguments, RewardArguments

JUDGE = {"judge_url": "http://localhost:8000/v1", "judge_model": "m"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"judge_model": "m"}, "--judge_model acts only with a judge: add --judge_url"),
        ({"judge_cache": "folder"}, "--judge_cache acts only with a judge"),
        ({"judge_request": "{}"}, "--judge_request acts only with a judge"),
        ({"judge_url": "http://localhost:8000/v1"}, "--judge_model is missing"),
        (JUDGE | {"judge_url": "localhost:8000/v1"}, "--judge_url is no http or https address"),
        (JUDGE | {"judge_url": "file:///etc/passwd"}, "--judge_url is no http"),
        (JUDGE | {"judge_url": "http://"}, "--judge_url is no http"),
        (JUDGE | {"judge_url": "http://[::1/v1"}, "--judge_url is no http"),
        (JUDGE | {"judge_url": "http://localhost:99999/v1"}, "--judge_url is no http"),
        (JUDGE | {"judge_url": ""}, "--judge_url is no http"),
        (JUDGE | {"judge_url": "https://api/v1?key=abc"}, "a password, a query or a fragment"),
        (JUDGE | {"judge_url": "http://localhost:8000/v1/chat/completions/"}, "leave /chat/completions out"),
        (JUDGE | {"judge_timeout": 0.0}, "--judge_timeout 0.0"),
        (JUDGE | {"judge_timeout": float("nan")}, "--judge_timeout nan"),
        (JUDGE | {"judge_timeout": float("inf")}, "--judge_timeout inf"),
        (JUDGE | {"judge_retries": -1}, "--judge_retries -1: at least 0"),
        (JUDGE | {"judge_concurrency": 0}, "--judge_concurrency 0: at least 1"),
        (JUDGE | {"judge_concurrency": 1001}, "--judge_concurrency 1001: at most 1000"),
        (JUDGE | {"judge_max_answer_chars": 0}, "--judge_max_answer_chars 0: at least 1"),
        (JUDGE | {"judge_request": "{"}, "--judge_request '{' is not JSON"),
        (JUDGE | {"judge_request": "[1]"}, "--judge_request '[1]': a JSON object is wanted"),
        (JUDGE | {"judge_request": {"stream": True}}, "--judge_request sets 'stream'"),
        ({"cosine_max_tokens": 0}, "--cosine_max_tokens 0: at least 1"),
        ({"cosine_correct": [1.0]}, "--cosine_correct 1.0: two finite numbers"),
        ({"cosine_wrong": [-0.5, 0.0, 1.0]}, "--cosine_wrong -0.5 0.0 1.0: two finite numbers"),
        ({"cosine_wrong": [float("nan"), 0.0]}, "--cosine_wrong nan 0.0: two finite numbers"),
        ({"cosine_wrong": [-0.5, 0.6]}, "--cosine_wrong reaches 0.6 and --cosine_correct 0.5"),
        ({"right_threshold": 0.0}, "--right_threshold 0.0"),
        ({"right_threshold": 1.1}, "--right_threshold 1.1"),
        ({"repetition_ngram": 0}, "--repetition_ngram 0: 1 to 50"),
        ({"repetition_ngram": 51}, "--repetition_ngram 51: 1 to 50"),
    ],
)
def test_refusals(flags, message):
    with pytest.raises(InputError, match=re.escape(message)):
        RewardArguments(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"judge_url": "https://user:hunter2@host/v1"},
        {"judge_url": "https://hunter2@host/v1"},
        {"judge_url": "https://host/v1?key=hunter2"},
        {"judge_api_key_env": "sk-hunter2"},
        {"judge_api_key_env": "hunter2=hunter2"},
        {"judge_api_key_env": ""},
    ],
)
def test_a_key_given_in_the_wrong_place_is_refused_and_not_repeated(flags):
    with pytest.raises(InputError, match=f"--{next(iter(flags))} ") as refused:
        JudgeArguments(**JUDGE | flags)
    assert "hunter2" not in str(refused.value)


def test_evaluation_takes_the_judge_alone():
    assert JudgeArguments(**JUDGE, judge_request='{"max_tokens": 99}').judge_request == {"max_tokens": 99}
    assert JudgeArguments(**JUDGE).judge_request == {}
    assert JudgeArguments().judge_url is None


def test_trls_parser_takes_them(tmp_path):
    argv = "--judge_url http://localhost:8000/v1 --judge_model m --judge_retries 0 --judge_timeout 1.5"
    argv += " --cosine_correct 2 1 --cosine_wrong -1 -0.25 --repetition_ngram 3"
    (flags,) = entry.parse((RewardArguments,), [*argv.split(), "--judge_request", '{"temperature": null}'])
    assert (flags.judge_url, flags.judge_model, flags.judge_retries) == ("http://localhost:8000/v1", "m", 0)
    assert (flags.cosine_correct, flags.cosine_wrong, flags.repetition_ngram) == ([2.0, 1.0], [-1.0, -0.25], 3)
    assert (flags.judge_timeout, flags.judge_request) == (1.5, {"temperature": None})

    config = tmp_path / "judge.yaml"
    config.write_text(
        "judge_url: http://localhost:8000/v1\njudge_model: m\njudge_request: {max_tokens: 4096}\ncosine_wrong: [-1, 0]\n"
    )
    (flags,) = entry.parse((RewardArguments,), ["--config", str(config)])
    assert (flags.judge_request, flags.cosine_wrong) == ({"max_tokens": 4096}, [-1.0, 0.0])
    (flags,) = entry.parse((RewardArguments,), [])
    assert flags == RewardArguments()


def test_settings_of_a_reward_that_is_not_used_are_refused():
    flags = RewardArguments(cosine_max_tokens=9)
    flags.refuse_idle(["accuracy", "length"])
    with pytest.raises(InputError, match="--cosine_max_tokens acts only with the reward length: add it to"):
        flags.refuse_idle(["accuracy", "repetition"])
    with pytest.raises(InputError, match="--repetition_ngram acts only with the reward repetition"):
        RewardArguments(repetition_ngram=3).refuse_idle(["length"])
    RewardArguments(**JUDGE).refuse_idle(["accuracy"])
