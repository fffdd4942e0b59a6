"""What `kivqa bridge` refuses before it asks anything, and which keys and models go where."""

import re
from pathlib import Path

import pytest
from bridging import DATA, read_jsonl, write_jsonl
from scripted_endpoint import pictures_of

from open_r1_kivqa.cli import main as kivqa
from open_r1_kivqa.errors import InputError


def test_bad_data_is_refused_before_any_request(make_run, script):
    run, server = make_run(3)
    run.rows[1]["image"] = "train/none.jpg"
    write_jsonl(run.folder / "rows.jsonl", run.rows)
    with pytest.raises(InputError, match="image_missing: 1\n.*none.jpg does not exist"):
        run()
    assert server.seen == [] and not run.output.exists()
    assert run(skip_bad_rows=True) == 0
    assert [row["id"] for row in read_jsonl(run.output)] == ["train-00000", "train-00002"]


WRONG = [
    ({"mllm_url": "localhost:8000"}, "--mllm_url is no http or https address"),
    ({"mllm_url": "http://user:secret@host/v1"}, "--mllm_url has a password.*--mllm_api_key_env"),
    ({"reasoner_url": "http://127.0.0.1:9/v1/chat/completions"}, "the address of one call"),
    ({"reasoner_url": "http://127.0.0.1:9/v1", "reasoner_model": None}, "--reasoner_model is missing"),
    ({"mllm_api_key_env": "sk-123"}, "--mllm_api_key_env is not the name of an environment variable"),
    ({"mllm_api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY, which --mllm_api_key_env names, is not set"),
    ({"mllm_request": "{"}, "--mllm_request '{' is not JSON"),
    ({"mllm_request": "[]"}, "a JSON object is wanted"),
    ({"reasoner_request": '{"stream": true}'}, "--reasoner_request sets 'stream'"),
    ({"concurrency": 0}, "--concurrency 0: at least 1"),
    ({"concurrency": 1001}, "at most 1000"),
    ({"passage_images": -1}, "--passage_images -1: at least 0"),
    ({"max_passage_tokens": 0}, "--max_passage_tokens 0: at least 1"),
    ({"timeout": 0}, "--timeout 0: seconds above 0"),
    ({"timeout": "nan"}, "--timeout nan: seconds above 0"),
    ({"min_score": 0}, "--min_score 0: a number between 0 and 1"),
    ({"max_failed_share": 1.5}, "--max_failed_share 1.5: a number between 0 and 1"),
    ({"context_level": "some"}, "--context_level 'some' is not known"),
    ({"reward_method": "magic"}, "Unknown reward method 'magic'"),
    ({"data_file_paths": "none.jsonl"}, "none.jsonl: does not exist; give the path of a jsonl file"),
    ({"knowledge_base": "none.jsonl"}, "none.jsonl"),
    ({"output": "out.json"}, "no name of a file that ends with .jsonl"),
    ({"output": "/none/out.jsonl"}, "the folder /none does not exist"),
    ({"cache": "/dev/null/answers"}, "--cache /dev/null/answers cannot be made"),
    ({"judge_url": "http://127.0.0.1:9/v1"}, "--judge_url and --judge_model belong together"),
    ({"prompts": "/none"}, "--prompts /none is no folder"),
]


@pytest.mark.parametrize(("flags", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_flags_are_refused(make_run, script, flags, words):
    run, server = make_run(2)
    with pytest.raises(InputError, match=words) as refused:
        run(**flags)
    assert "secret" not in str(refused.value) and "sk-123" not in str(refused.value)
    assert server.seen == [] and not run.output.exists()


def test_the_output_is_no_input(make_run, script):
    run, _ = make_run(2)
    with pytest.raises(InputError, match="is one of the data files"):
        run(output=run.flags["data_file_paths"])


def test_an_endpoint_that_is_down_is_one_line_and_exit_code_2(make_run, script, capsys):
    run, _ = make_run(2)
    assert kivqa(["bridge", *run.words(mllm_url="http://127.0.0.1:9/v1")]) == 2
    told = capsys.readouterr().err
    assert re.fullmatch(
        r"kivqa bridge: --mllm_model 'eyes' at http://127.0.0.1:9/v1 cannot be used: no connection \(.*\)\. Start it, or correct the flags\.\n",
        told,
    )
    assert not run.output.exists()


def test_a_model_that_takes_no_pictures_is_found_out_first(make_run, script):
    run, server = make_run(2)
    inner = server.reply_to
    refusal = (400, {}, {"error": "brain is not a multimodal model"})
    server.reply_to = lambda request, headers: refusal if pictures_of(request) else inner(request, headers)
    with pytest.raises(InputError, match="--mllm_model 'eyes' .*status 400: .*not a multimodal model"):
        run()
    assert server.seen == []


def test_the_check_sends_the_fields_of_later_requests(make_run, script):
    run, server = make_run(2)
    seen, inner = [], server.reply_to
    server.reply_to = lambda request, headers: seen.append(request) or inner(request, headers)
    assert run(reasoner_request='{"max_tokens": null, "max_completion_tokens": 900, "top_k": 5}') == 0
    eyes, brain = seen[:2]
    assert eyes["max_tokens"] == 16 and [picture.size for picture in pictures_of(eyes)] == [(56, 56)]
    del brain["messages"]
    assert brain == {
        "model": "brain", "max_completion_tokens": 16, "top_k": 5, "temperature": 0.6, "top_p": 0.95, "seed": 42
    }  # fmt: skip


@pytest.mark.parametrize("url", ["http://exa mple/v1", "http://no.such.host.invalid/v1", "http://☃.invalid/v1"])
def test_addresses_without_endpoint(make_run, script, url):
    run, _ = make_run(1)
    with pytest.raises(InputError, match="--mllm_model 'eyes' at http://.* cannot be used: "):
        run(mllm_url=url)


def test_one_model_may_play_both_parts(make_run, script):
    run, server = make_run(2)
    assert run(reasoner_model=None) == 0
    assert {request["model"] for request in server.seen} == {"eyes"} and server.checks == 1


def test_keys_go_where_they_belong(make_run, script, serve, monkeypatch):
    run, server = make_run(2)
    other = serve(script)
    monkeypatch.setenv("EYES_KEY", "key-of-eyes")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-another-service")
    assert run(mllm_api_key_env="EYES_KEY", reasoner_url=other.url) == 0
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer key-of-eyes"}
    assert all("key-of" not in headers.as_string() for headers in other.headers)
    assert len(other.seen) == 2
    assert run(mllm_api_key_env="EYES_KEY", cache=run.folder / "again") == 0  # the same address, so the same key
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer key-of-eyes"}
    assert not any(b"key-of" in path.read_bytes() for path in run.folder.rglob("*.json*"))


def test_prompts_are_in_the_package():
    folder = Path(DATA).parents[1] / "cold_start" / "prompts"
    assert len(list(folder.glob("*.txt"))) == 6
