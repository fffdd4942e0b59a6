"""A model behind a real HTTP server on this machine answers: what arrives there, and what becomes of replies and failures."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from cold_start.scripted_endpoint import completion, pictures_of, serving, texts_of
from PIL import Image
from training_rows import write_data

from open_r1_kivqa import evaluate_jsonl
from open_r1_kivqa.data.images import load_image
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.arguments import EvaluationArguments
from open_r1_kivqa.evaluation.generate import greedy
from open_r1_kivqa.evaluation.server import ServedModel
from open_r1_kivqa.vlm_modules.loading import load_model, load_processor

PLAIN = {
    "temperature": 0.0,
    "max_tokens": 9,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": True,
}
ANSWER = "<think>x</think><answer>yes</answer>"


@pytest.fixture
def serve():
    with serving() as start:
        yield start


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Flags of the data: eight rows with no, one or two images each."""
    return write_data(tmp_path_factory.mktemp("data"), kinds="12112012")


def served(url, **flags):
    options = {"server_url": url, "server_model": "m", "max_new_tokens": 9, "server_retries": 0}
    return ServedModel(EvaluationArguments(**options | flags))


def question(text, *images):
    blocks = [{"type": "image", "image": str(image)} for image in images]
    system = {"role": "system", "content": [{"type": "text", "text": "Answer."}]}
    return [system, {"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]


def test_the_pixels_that_arrive_are_those_a_model_in_this_process_gets(serve, tmp_path):
    rng = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / "a.jpg", exif=exif)
    Image.fromarray(rng.integers(0, 256, (9, 7), dtype=np.uint8)).save(tmp_path / "grey.png")
    server = serve(lambda number, request: ANSWER)
    model = served(server.url)
    assert model.greedy([question("Which?", tmp_path / "a.jpg", tmp_path / "grey.png")]) == [ANSWER]
    model.close()
    (request,) = server.seen
    sent = [np.asarray(picture) for picture in pictures_of(request)]
    assert [picture.shape for picture in sent] == [(30, 20, 3), (9, 7, 3)]
    for picture, name in zip(sent, ("a.jpg", "grey.png"), strict=True):
        assert np.array_equal(picture, np.asarray(load_image(str(tmp_path / name))))
    system, user = request.pop("messages")
    assert system == {"role": "system", "content": "Answer."}
    assert [block["type"] for block in user["content"]] == ["image_url", "image_url", "text"]
    assert request == {"model": "m", **PLAIN}


def test_many_prompts_are_asked_at_a_time_and_answered_in_order(serve):
    barrier = threading.Barrier(4, timeout=20)

    def act(number, request):
        if number <= 4:
            barrier.wait()
        return texts_of(request).splitlines()[-1]

    server = serve(act)
    model = served(server.url, server_concurrency=4)
    assert model.greedy([question(f"q{i}") for i in range(10)]) == [f"q{i}" for i in range(10)]
    assert model.greedy([]) == []
    model.close()
    assert server.most_open == 4


def test_sampled_answers_have_the_temperature_and_each_its_seed(serve):
    server = serve(lambda number, request: str(request["seed"]))
    model = served(server.url, rollouts=3, temperature=0.7)
    assert model.sampled([question("q")] * 3, [5, 6, 2**31 - 1]) == ["5", "6", "2147483647"]
    model.close()
    assert all(request["temperature"] == 0.7 and request["top_p"] == 1.0 for request in server.seen)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (completion(""), ""),  # a model that says nothing has answered
        (completion("a", reasoning_content="why"), "<think>why</think>a"),
        (completion("a", reasoning="why"), "<think>why</think>a"),
        (completion("cut", end="length"), "cut"),
        ((400, {}, {"error": "too long"}), None),
        ((200, {}, b"<html>"), None),
        (None, None),
    ],
)
def test_replies(serve, reply, text):
    model = served(serve(lambda number, request: reply).url)
    assert model.greedy([question("q")]) == [text]
    model.close()
    assert model.failed == (text is None)


def test_fields_can_be_added_and_taken_out_but_for_what_makes_the_measurement(serve):
    server = serve(lambda number, request: "a")
    model = served(server.url, server_request='{"top_k": null, "repetition_penalty": null, "min_tokens": 1}')
    model.greedy([question("q")])
    model.close()
    wanted = {name: value for name, value in PLAIN.items() if name not in ("top_k", "repetition_penalty")}
    assert {**server.seen[0], "messages": None} == {"model": "m", "messages": None, **wanted, "min_tokens": 1}
    for fields in ('{"temperature": 0.5}', '{"temperature": null}', '{"seed": 1}', {"seed": 1}):
        with pytest.raises(InputError, match="sets the temperature or the seed"):
            served(server.url, server_request=fields)
    with pytest.raises(InputError, match="--server_request sets 'n'"):
        served(server.url, server_request='{"n": 4}')


def test_a_first_request_shows_whether_the_server_can_be_used(serve):
    server = serve(lambda number, request: "a")
    model = served(server.url)
    model.check(with_picture=True)
    assert server.checks == 1 and server.seen == []
    model.close()
    refusing = served(server.url.replace("/v1", "/v2"))
    with pytest.raises(InputError, match="--server_model 'm' at .*/v2 cannot be used: status 404"):
        refusing.check(with_picture=False)
    refusing.close()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"server_url": "localhost:8000"}, "--server_url is no http or https address"),
        ({"server_url": "http://localhost/v1"}, "--server_model is missing"),
        ({"server_model": "m"}, "--server_model has no effect without --server_url"),
        ({"server_concurrency": 3}, "--server_concurrency has no effect without --server_url"),
        ({"server_url": "http://localhost/v1", "server_model": "m", "server_concurrency": 0}, "at least 1"),
        ({"server_url": "http://localhost/v1", "server_model": "m", "server_concurrency": 5000}, "at most 1000"),
        ({"server_url": "http://localhost/v1", "server_model": "m", "server_timeout": 0}, "seconds above 0"),
        ({"server_url": "http://localhost/v1", "server_model": "m", "adapter_name_or_path": "a"}, "--enable-lora"),
        ({"temperature": 0.7}, "--temperature acts on sampled completions only"),
        ({"rollouts": 2, "temperature": 0}, "a number above 0"),
        ({"rollouts": 0}, "--rollouts 0: at least 1"),
    ],
)
def test_flags_that_are_refused(flags, words):
    with pytest.raises(InputError, match=words):
        EvaluationArguments(**flags)


# The whole entry


def arguments(data, folder, **flags):
    flags = {"settings": "normal,no_image", "max_new_tokens": 6, "num_passages": 2, "output_dir": folder} | flags
    return [part for name, value in (data | flags).items() for part in (f"--{name}", str(value))]


class TinyServer:
    """Answers requests with a model in this process, as a server that applies the model's chat template would."""

    def __init__(self, path, folder: Path):
        self.model, self.processor = load_model(path), load_processor(path)
        self.folder, self.lock = folder, threading.Lock()

    def __call__(self, number, request):
        pictures = iter(pictures_of(request))
        prompt = []
        for message in request["messages"]:
            content = message["content"]
            content = [{"type": "text", "text": content}] if isinstance(content, str) else content
            blocks = [block if block["type"] == "text" else self.saved(next(pictures)) for block in content]
            prompt.append({"role": message["role"], "content": blocks})
        with self.lock:
            return greedy(self.model, self.processor, [prompt], max_new_tokens=request["max_tokens"], batch_size=1)[0]

    def saved(self, picture):
        path = self.folder / f"{threading.get_ident()}-{id(picture)}.png"
        picture.save(path)
        return {"type": "image", "image": str(path)}


def test_the_same_model_behind_a_server_gives_the_same_records(serve, data, tmp_path, tiny_model):
    path = tiny_model("qwen2_5_vl")
    local = evaluate_jsonl.main(arguments(data, tmp_path / "local", model_name_or_path=path))
    server = serve(TinyServer(path, tmp_path))
    flags = {"server_url": server.url, "server_model": "m", "server_concurrency": 4}
    remote = evaluate_jsonl.main(arguments(data, tmp_path / "remote", **flags))
    predictions = [(tmp_path / name / "predictions.jsonl").read_bytes() for name in ("local", "remote")]
    assert predictions[0] == predictions[1] and remote == local
    assert server.checks == 1 and len(server.seen) == 16
    manifest = json.loads((tmp_path / "remote" / "manifest.json").read_text())
    assert manifest["model"] is None and manifest["flags"]["server_model"] == "m"
    moved = flags | {"server_url": server.url + "/"}  # a server may move; what it answered is kept
    evaluate_jsonl.main(arguments(data, tmp_path / "remote", **moved))
    assert len(server.seen) == 16


def test_what_a_server_answered_is_kept_when_it_fails_on_other_rows(serve, data, tmp_path):
    broken = True

    def act(number, request):
        if broken and "capital? 3" in texts_of(request):
            return 400, {}, {"error": "the prompt is too long"}
        return ANSWER

    server = serve(act)
    flags = {"server_url": server.url, "server_model": "m", "server_retries": 0, "rollouts": 2}
    with pytest.raises(InputError, match=r"failed on 4 requests .*too long.*start the same command again"):
        evaluate_jsonl.main(arguments(data, tmp_path, **flags))
    assert len(server.seen) == 8 * 2 + 8 * 2 and not (tmp_path / "summary.json").exists()
    broken = False
    summary = evaluate_jsonl.main(arguments(data, tmp_path, **flags))
    assert len(server.seen) == 32 + 2 + 2  # the row under two settings, and its two rollouts
    assert summary["splits"]["all"]["accuracy"] == 1.0
    assert summary["splits"]["all"]["rollouts"] == {
        "rows": 8,
        "rollouts": 2,
        "avg": 1.0,
        "pass": 1.0,
        "temperature": 1.0,
    }


def test_a_server_that_is_gone_ends_the_run_soon(serve, data, tmp_path):
    server = serve(lambda number, request: (503, {}, "overloaded"))
    flags = {"server_url": server.url, "server_model": "m", "server_retries": 0, "server_concurrency": 2}
    with pytest.raises(InputError, match="failed on .* requests .*All other answers are kept"):
        evaluate_jsonl.main(arguments(data, tmp_path, batch_size=1, settings="normal,no_image,wrong_image", **flags))
    assert len(server.seen) <= 10  # after eight failures in a row no more are sent


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "--model_name_or_path is missing: .*--server_url"),
        ({"server": True, "dtype": "bfloat16"}, "--dtype has no effect with --server_url"),
        ({"server": True, "max_pixels": 784}, "--max_pixels has no effect with --server_url"),
        ({"server": True, "max_passage_tokens": 9}, "--max_passage_tokens counts by the model's tokenizer"),
        ({"server": True, "reward_method": "iou"}, "rows.jsonl:1 is scored by its boxes.*add --model_name_or_path"),
    ],
)
def test_what_a_server_alone_does_not_know_is_refused(serve, data, tmp_path, flags, words):
    server = serve(lambda number, request: "a")
    if flags.get("reward_method"):
        folder = tmp_path / "boxes"
        data = write_data(folder, kinds="1")
        row = json.loads((folder / "rows.jsonl").read_text().splitlines()[0])
        row["conversations"][-1]["value"] = "<answer>[1, 1, 9, 9]</answer>"
        (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    flags = dict(flags)
    if flags.pop("server", False):
        flags |= {"server_url": server.url, "server_model": "m"}
    with pytest.raises(InputError, match=words):
        evaluate_jsonl.main(arguments(data, tmp_path / "out", **flags))
    assert not (tmp_path / "out").exists() and server.seen == []


def test_a_model_that_judges_itself_is_warned_of(serve, data, tmp_path, capsys):
    server = serve(lambda number, request: "correct" if "reference_answers" in texts_of(request) else ANSWER)
    flags = {"server_url": server.url, "server_model": "m", "judge_url": server.url, "judge_model": "m"}
    evaluate_jsonl.main(arguments(data, tmp_path, settings="normal", reward_method="llm", **flags))
    assert "'m' judges its own answers" in capsys.readouterr().out
