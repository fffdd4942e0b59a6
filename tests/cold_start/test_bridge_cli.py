"""`kivqa bridge` from rows to cold-start rows, against a server that speaks the protocol."""

import json
import re
import shutil

import pytest
from bridging import IMAGES, KNOWLEDGE, read_jsonl, write_jsonl
from PIL import Image, ImageChops
from scripted_endpoint import completion, pictures_of, texts_of

from open_r1_kivqa.checks_cli import main as check_main
from open_r1_kivqa.data.jsonl import Rows
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.knowledge.budget import PassageBudget
from open_r1_kivqa.prompting import Prompting
from open_r1_kivqa.prompts import load_template
from open_r1_kivqa.rewards.format import has_format
from open_r1_kivqa.rewards.methods import score
from open_r1_kivqa.vlm_modules.loading import load_processor


def is_reasoning(request) -> bool:
    return request["model"] == "brain"


def test_rows_become_cold_start_rows(make_run, capsys):
    run, server = make_run(8)
    assert run(knowledge_base=KNOWLEDGE) == 0
    assert len(server.seen) == 24 and server.checks == 2
    rows = read_jsonl(run.output)
    assert [row["id"] for row in rows] == [row["id"] for row in run.rows]
    for row, source in zip(rows, run.rows, strict=True):
        answer = source["answers"][0]
        assert row.pop("conversations") == [
            source["conversations"][0],
            {
                "from": "gpt",
                "value": f"<think>As the picture shows, the flag is shown. So it is {answer}.</think><answer>{answer}</answer>",
            },
        ]
        assert row.pop("candidates") == source["candidates"][0]  # those shown, in their order
        assert row == {name: value for name, value in source.items() if name not in ("conversations", "candidates")}
    assert run.counts() == {"kept": 8}
    report = run.report
    assert report["yield"] == 1.0 and report["written"] == str(run.output) and report["kept_at_attempt"] == {"1": 8}
    assert report["requests"]["mllm"] == {
        "asked": 16,
        "cached": 0,
        "failed": 0,
        "prompt_tokens": 1600,
        "completion_tokens": 320,
        "prompt_tokens_all": 1600,
        "completion_tokens_all": 320,
        "uncounted": 0,
    }
    assert report["requests"]["reasoner"]["completion_tokens"] == 160
    out = capsys.readouterr().out
    assert re.search(r"^kept +8 +100\.0%$", out, re.MULTILINE)
    assert f"{run.output}: 8 rows" in out
    assert not list(run.folder.glob("*.part"))


def test_the_output_passes_the_checks_and_trains(make_run, capsys):
    from open_r1_kivqa.trainer.sft_trainer import PromptCompletions

    run, _ = make_run(4)
    assert run(knowledge_base=KNOWLEDGE, num_passages=3) == 0
    words = ["--data_file_paths", str(run.output), "--image_folders", IMAGES, "--knowledge_base", KNOWLEDGE]
    assert check_main([*words, "--needs_response"]) == 0
    assert "Checked 4 rows and 4 images: no problem." in capsys.readouterr().out
    rows = Rows.open([str(run.output)], [IMAGES], None)
    examples = PromptCompletions(rows, Prompting(load_template("kivqa"), 42, KnowledgeBase.open(KNOWLEDGE)), epoch=0)
    batch = examples({"row": [0, 1, 2, 3]})
    for i, source in enumerate(run.rows):
        (response,) = batch["completion"][i][0]["content"]
        assert has_format(response["text"])
        assert score(source["answers"][0], rows[i]) == 1.0
        assert [picture.size for picture in batch["images"][i]] == [(112, 84)]
        prompt = "".join(block.get("text", "") for block in batch["prompt"][i][-1]["content"])
        # an epoch would draw among the row's candidate lists; the reasoning was made for one of them
        keys = [key.partition("#")[0] for key in source["candidates"][0][:3]]
        titles = [KnowledgeBase.open(KNOWLEDGE).article(key)["title"] for key in keys]
        assert re.findall(r"^\[\d\] (.*?): ", prompt, re.MULTILINE) == titles


@pytest.mark.parametrize(("level", "shown"), [("2", 2), ("gold", 1), ("gold_removed", 4)])
def test_the_passages_of_a_level_stay_with_the_row(make_run, level, shown):
    run, server = make_run(3)
    assert run(knowledge_base=KNOWLEDGE, context_level=level) == 0
    base = KnowledgeBase.open(KNOWLEDGE)
    prompts = [texts_of(request) for request in server.seen if is_reasoning(request)]
    for row in read_jsonl(run.output):
        passages = [base.passage(key) for key in row["candidates"]]
        assert len(passages) == shown
        texts = "\n\n".join(f"[{i}] {one.title}: {one.section}\n{one.text}" for i, one in enumerate(passages, 1))
        assert sum(f"{texts}\n\nQuestion: " in prompt for prompt in prompts) == 1
        assert (row["evidence"] in row["candidates"]) is (level != "gold_removed")


def test_what_each_model_sees(make_run):
    run, server = make_run(3)
    assert run(knowledge_base=KNOWLEDGE, concurrency=1) == 0
    reasoning = [request for request in server.seen if is_reasoning(request)]
    others = [request for request in server.seen if not is_reasoning(request)]
    assert len(reasoning) == 3 and len(others) == 6
    base = KnowledgeBase.open(KNOWLEDGE)
    by_question = {row["conversations"][0]["value"].removeprefix("<image>\n"): row for row in run.rows}
    assert len(by_question) == 3
    for request in server.seen:
        question = next(question for question in by_question if question in texts_of(request))
        source = by_question[question]
        passages = [base.passage(key) for key in source["candidates"][0]]
        shown = [f"[{i}] {one.title}: {one.section}\n{one.text}" for i, one in enumerate(passages, 1)]
        described = "Somebody wrote this" in texts_of(request)
        assert ("\n\n".join(shown) in texts_of(request)) is not described  # the description needs the picture alone
        pictures = pictures_of(request)
        if is_reasoning(request):
            assert pictures == [] and all(isinstance(message["content"], str) for message in request["messages"])
            assert f"Picture {source['image']}: a flag, 112 x 84 pixels." in texts_of(request)
            assert request["temperature"] == 0.6 and request["top_p"] == 0.95 and request["max_tokens"] == 8192
        else:
            (picture,) = pictures
            with Image.open(f"{IMAGES}/{source['image']}") as original:
                difference = ImageChops.difference(picture, original.convert("RGB"))
            assert max(high for _, high in difference.getextrema()) <= 40  # JPEG's
            assert request["temperature"] == 0.2 and request["max_tokens"] == 2048
        assert request["seed"] == 42 and request["model"] in ("eyes", "brain")


def test_passages_are_cut_and_pictured_as_training_shows_them(make_run, tiny_model):
    run, server = make_run(3)
    model = tiny_model("qwen2_5_vl")
    options = {"max_passage_tokens": 3, "model_name_or_path": model, "passage_images": 2, "context_level": "gold"}
    assert run(knowledge_base=KNOWLEDGE, **options) == 0
    budget = PassageBudget(load_processor(model).tokenizer, 3)
    base = KnowledgeBase.open(KNOWLEDGE)
    for source in run.rows:
        shown = budget.cut(base.passage(source["evidence"]), source["answers"])
        assert source["answers"][0] in shown.text
        assert any(f"{shown.section}\n{shown.text}\n" in texts_of(one) for one in server.seen if is_reasoning(one))
    for request in server.seen:
        pseudo_cot = not is_reasoning(request) and "[1] " in texts_of(request)
        assert len(pictures_of(request)) == (0 if is_reasoning(request) else 2 if pseudo_cot else 1)
    with pytest.raises(InputError, match="--max_passage_tokens and --model_name_or_path belong together"):
        run(knowledge_base=KNOWLEDGE, max_passage_tokens=3)
    with pytest.raises(InputError, match="--passage_images acts on passages"):
        run(passage_images=1)


FAULTS = {
    "wrong_answer": "<think>The flag is that of Atlantis.</think><answer>Atlantis</answer>",
    "bad_format": "It is {answer}.",
    "contradiction": "<think>So the answer is Atlantis.</think><answer>{answer}</answer>",
    "refused": "I'm sorry, but I can't help with that.",
}


def test_what_is_dropped_and_why(make_run, script, capsys):
    run, _ = make_run(8)
    faults = dict(zip((row["answers"][0] for row in run.rows), FAULTS, strict=False))
    right = script.respond
    script.respond = lambda answer: FAULTS[faults[answer]].format(answer=answer) if answer in faults else right(answer)
    assert run() == 0
    assert run.counts() == {"kept": 4, "wrong_answer": 1, "bad_format": 1, "contradiction": 1, "refused": 1}
    assert [row["id"] for row in read_jsonl(run.output)] == [row["id"] for row in run.rows[4:]]
    outcomes = run.report["outcomes"]
    ids = {kind: outcomes[kind]["examples"][0]["id"] for kind in FAULTS}
    assert list(ids.values()) == [row["id"] for row in run.rows[:4]]
    assert outcomes["wrong_answer"]["examples"][0]["text"] == "Atlantis"
    assert outcomes["contradiction"]["rules"] == {"other_answer": 1}
    assert outcomes["refused"]["examples"][0]["text"] == FAULTS["refused"]
    assert run.report["yield"] == 0.5
    out = capsys.readouterr().out
    assert re.search(r"^contradiction +1 +12\.5%  other_answer 1$", out, re.MULTILINE)


def test_reasoning_beside_the_text(make_run, script):
    run, server = make_run(4)
    fields = iter(["reasoning_content", "reasoning"] * 2)

    def act(number, request):
        reply = script(number, request)
        if not is_reasoning(request):
            return reply
        thinking, _, answer = reply.removeprefix("<think>").partition("</think>")
        return completion(f"\n\n{answer}", **{next(fields): f"{thinking}\n"})

    server.act = act
    assert run() == 0
    for row, source in zip(read_jsonl(run.output), run.rows, strict=True):
        answer = source["answers"][0]
        response = row["conversations"][-1]["value"]
        assert response == (
            f"<think>As the picture shows, the flag is shown. So it is {answer}.</think><answer>{answer}</answer>"
        )


def test_attempts_go_on_until_one_is_right(make_run, script):
    run, server = make_run(3)
    wrong = "<think>The flag is that of Atlantis.</think><answer>Atlantis</answer>"

    def act(number, request):
        late = is_reasoning(request) and request["seed"] < 44
        return wrong if late else script(number, request)

    server.act = act
    assert run(attempts=2) == 1 and run.counts() == {"wrong_answer": 3}
    assert len(server.seen) == 6 + 6
    assert run(attempts=5) == 0 and run.counts() == {"kept": 3}
    assert len(server.seen) == 6 + 9  # the first two answers were known
    assert run.report["kept_at_attempt"] == {"3": 3}
    with pytest.raises(InputError, match="--attempts 2 would ask the same again at temperature 0"):
        run(attempts=2, reasoner_request='{"temperature": 0}')
    # without a seed too, another attempt is another request
    late = iter([True, False])
    server.act = lambda number, request: (
        wrong if is_reasoning(request) and next(late, False) else script(number, request)
    )
    assert run(attempts=2, limit=1, reasoner_request='{"seed": null}') == 0
    assert "seed" not in server.seen[-1] and run.report["kept_at_attempt"] == {"2": 1}


def test_questions_lose_what_asks_for_tags(make_run, script):
    run, server = make_run(2)
    asks = " First output the thinking process in <think> </think> tags and then the final answer in <answer> </answer> tags."
    rows = json.loads(json.dumps(run.rows))
    for row in rows:
        row["conversations"][0]["value"] += asks
        row["conversations"].insert(0, {"from": "system", "value": "Use <think> and <answer> tags."})
    write_jsonl(run.folder / "rows.jsonl", rows)
    assert run() == 0
    for row, source in zip(read_jsonl(run.output), run.rows, strict=True):
        assert row["conversations"][:-1] == source["conversations"][:1]
    assert not any(asks.strip() in texts_of(request) for request in server.seen)


def test_rows_of_several_files_in_one(make_run, script, tmp_path):
    """Image folders and methods differ by file; the one output names both."""
    run, _ = make_run(4)
    for name, rows in (("a", run.rows[:2]), ("b", run.rows[2:])):
        for row in rows:
            path = tmp_path / "pictures" / name / row["image"]
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(f"{IMAGES}/{row['image']}", path)
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    flags = {
        "data_file_paths": f"{tmp_path}/a.jsonl:{tmp_path}/b.jsonl",
        "image_folders": f"{tmp_path}/pictures/a:{tmp_path}/pictures/b",
        "reward_method": "default:exact",
    }
    assert run(**flags) == 0
    rows = read_jsonl(run.output)
    assert [row["image"] for row in rows] == [
        f"{name}/{row['image']}" for name, row in zip("aabb", run.rows, strict=True)
    ]
    assert [row.get("accu_reward_method") for row in rows] == [None, None, "exact", "exact"]
    assert run.report["image_folders"] == f"{tmp_path}/pictures"
    words = ["--data_file_paths", str(run.output), "--image_folders", f"{tmp_path}/pictures", "--needs_response"]
    assert check_main(words) == 0


def test_rows_without_answers_keep_theirs(make_run, script):
    """The gpt turn was the reference; the response takes its place."""
    run, _ = make_run(2)
    rows = [{name: row[name] for name in ("id", "image", "conversations")} for row in run.rows]
    write_jsonl(run.folder / "rows.jsonl", rows)
    assert run() == 0
    assert [row["answers"] for row in read_jsonl(run.output)] == [row["answers"] for row in run.rows]


def test_a_row_without_image_is_left_out(make_run, script):
    run, server = make_run(2)
    del run.rows[0]["image"]
    run.rows[0]["conversations"][0]["value"] = "What is the capital of France?"
    write_jsonl(run.folder / "rows.jsonl", run.rows)
    assert run() == 0
    assert run.counts() == {"kept": 1, "no_image": 1} and len(server.seen) == 3


def test_limit_draws_rows(make_run, script):
    run, _ = make_run(8)
    drawn = set()
    for seed in range(3):
        assert run(limit=3, seed=seed) == 0
        ids = [row["id"] for row in read_jsonl(run.output)]
        assert len(ids) == 3 and ids == sorted(ids)
        drawn.add(tuple(ids))
        assert run(limit=3, seed=seed) == 0 and ids == [row["id"] for row in read_jsonl(run.output)]
    assert len(drawn) > 1


# Boxes


@pytest.mark.parametrize(
    ("frame", "answer", "kept"),
    [
        ("sent", "[11, 21, 50, 60]", "[22, 42, 100, 120]"),  # the picture of 400 x 200 goes as 200 x 100
        ("1000", "[55, 210, 250, 600]", "[22, 42, 100, 120]"),
        ("1000", "[22, 42, 100, 120]", None),
    ],
)
def test_boxes_come_back_in_original_pixels(make_run, tmp_path, frame, answer, kept):
    def act(number, request):
        if is_reasoning(request):
            return f"<think>It reaches over {answer}.</think><answer>{answer}</answer>"
        return f"The picture is {pictures_of(request)[0].size}."

    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (400, 200), "red").save(tmp_path / "pictures" / "a.png")
    turns = [{"from": "human", "value": "<image>Where is it?"}, {"from": "gpt", "value": "[20, 40, 100, 120]"}]
    run, server = make_run([{"id": "q", "image": "a.png", "conversations": turns}], act)
    flags = {"task_type": "rec", "min_score": 0.9, "max_image_pixels": 20_000, "image_folders": tmp_path / "pictures"}
    assert run(box_frame=frame, **flags) == (1 if kept is None else 0)
    assert "The picture is (200, 100)." in texts_of(server.seen[1])
    if kept is not None:
        (row,) = read_jsonl(run.output)
        assert row["conversations"][-1]["value"] == f"<think>It reaches over {kept}.</think><answer>{kept}</answer>"
        assert row["accu_reward_method"] == "iou"


# The judge


def test_rows_of_method_llm_ask_the_judge(make_run, script, capsys):
    from judge_server import says_paris
    from judge_server import serving as judges

    run, _ = make_run(2)
    right = run.rows[0]["answers"][0]
    for row in run.rows:
        row["answers"] = ["Paris"]
    write_jsonl(run.folder / "rows.jsonl", run.rows)
    script.respond = lambda answer: (
        f"<think>So it is.</think><answer>It is {'Paris' if answer == right else answer}</answer>"
    )
    with judges() as start:
        judge = start(says_paris)
        with pytest.raises(InputError, match="asks a judge, and none is named"):
            run(reward_method="llm")
        assert run(reward_method="llm", judge_url=judge.url, judge_model="grader") == 0
        assert run.counts() == {"kept": 1, "wrong_answer": 1}
        asked = len(judge.seen)
        assert run(reward_method="llm", judge_url=judge.url, judge_model="grader") == 0
        assert len(judge.seen) == asked + 1  # its check; the verdicts lie with the answers
        assert judge.seen[-1]["max_tokens"] == 16
        without = '{"max_tokens": null}'
        assert run(reward_method="llm", judge_url=judge.url, judge_model="grader", judge_request=without) == 0
        assert "max_tokens" not in judge.seen[-1]
        judge.act = lambda number, row: "hm" if "capital of France" not in row["question"] else "correct"
        flags = {"reward_method": "llm", "judge_url": judge.url, "cache": run.folder / "other"}
        assert run(**flags, judge_model="grader") == 1
        assert run.counts() == {"endpoint_failed": 2} and run.report["outcomes"]["endpoint_failed"]["rules"] == {
            "judge": 2
        }
        capsys.readouterr()
