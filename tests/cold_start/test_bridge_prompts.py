"""The prompt files, and the messages that come of them."""

import pytest
from bridging import KNOWLEDGE, factbook

from open_r1_kivqa.cold_start.pictures import Pictures
from open_r1_kivqa.cold_start.prompt_files import load_prompts, read_replacements, reword
from open_r1_kivqa.cold_start.steps import Steps, named, plain_sample, sent
from open_r1_kivqa.data.samples import parse_row
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.knowledge.base import KnowledgeBase


def sample_of(question="<image>Which {city} is it?", *turns, image="a.png", **fields):
    turns = [*turns, {"from": "human", "value": question}, {"from": "gpt", "value": "Paris"}]
    row = {"id": "q", "image": image, "conversations": turns, **fields}
    return parse_row(row, image_folder="/pictures", reward_method="", source="rows.jsonl:1")


def mine(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return load_prompts(str(tmp_path))


SHORT = {
    "pseudo_cot": "Look.\n\n{passages}\n\nQ: {question}",
    "description": "Q: {question}\nDraft: {pseudo_cot}\nDescribe.",
    "reasoning": "See: {description}\n\n{passages}\n\nQ: {question}",
    "passages": "Passages:\n{passages}",
    "passage": "[{number}] {text}",
}


def test_messages(tmp_path):
    steps = Steps(mine(tmp_path, **SHORT))
    passages = [KnowledgeBase.open(KNOWLEDGE).passage(key) for key in factbook(1)[0]["candidates"][0][:2]]
    shown = f"Passages:\n[1] {passages[0].text}\n\n[2] {passages[1].text}"
    picture = {"type": "image", "image": "/pictures/a.png"}
    sample = sample_of()
    (message,) = steps.pseudo_cot(sample, passages)
    text = {"type": "text", "text": f"Look.\n\n{shown}\n\nQ: Which {{city}} is it?"}
    assert message == {"role": "user", "content": [picture, text]}
    (message,) = steps.description(sample, passages, " A {braced} <draft> \\1 {question}{passages}\n")
    text = {
        "type": "text",
        "text": "Q: Which {city} is it?\nDraft: A {braced} ‹draft> \\1 {question}{passages}\nDescribe.",
    }
    assert message["content"] == [picture, text]
    (message,) = steps.reasoning(sample, passages, "A flag.")
    assert message["content"] == f"See: A flag.\n\n{shown}\n\nQ: Which {{city}} is it?"
    (message,) = steps.reasoning(sample, [], "A {passages} flag.\n\n{passages}\n\n <|im_end|>")
    assert message["content"] == "See: A {passages} flag.\n\n{passages}\n\n ‹|im_end|>\n\nQ: Which {city} is it?"


def test_images_keep_their_places_and_earlier_turns_stay(tmp_path):
    steps = Steps(mine(tmp_path, **SHORT))
    earlier = [
        {"from": "system", "value": "Answer in French."},
        {"from": "human", "value": "<image>What is this?"},
        {"from": "gpt", "value": "A tower."},
    ]
    sample = sample_of("Taller than <image>?", *earlier, image=["a.png", "b.png"])
    system, first, said, last = steps.pseudo_cot(sample, [])
    assert system["content"] == [{"type": "text", "text": "Answer in French."}]
    assert [block["type"] for block in first["content"]] == ["image", "text"]
    assert said == {"role": "assistant", "content": [{"type": "text", "text": "A tower."}]}
    assert [block.get("image", block.get("text")) for block in last["content"]] == [
        "Look.\n\nQ: Taller than ",
        "/pictures/b.png",
        "?",
    ]
    texts = [message["content"] for message in steps.reasoning(sample, [], "Two towers.")]
    assert texts == ["Answer in French.", "What is this?", "A tower.", "See: Two towers.\n\nQ: Taller than ?"]


def test_turns_that_ask_for_tags():
    system = {"from": "system", "value": "Use <think> and <answer> tags."}
    asks = "Output the thinking process in <think> </think> tags."
    assert plain_sample(sample_of(f"<image>Which? {asks}", system)).turns == (("user", "<image>Which?"),)
    system["value"] = f"Answer in French. {asks}"
    assert plain_sample(sample_of("<image>Which?", system)).turns[0] == ("system", "Answer in French.")
    # nothing would be left of the question
    assert plain_sample(sample_of(f"<image>{asks}")).turns == (("user", f"<image>{asks}"),)
    assert plain_sample(sample_of()) == sample_of()


def test_named_and_sent():
    row = factbook(1)[0]
    path = f"{KNOWLEDGE.rpartition('/')[0]}/images/{row['image']}"
    block = {"type": "text", "text": "Look."}
    messages = [
        {"role": "system", "content": [block]},
        {"role": "user", "content": [{"type": "image", "image": path}, block]},
    ]
    pictures = Pictures(10**6)
    system, user = named(messages, pictures)
    assert system == {"role": "system", "content": "Look."}
    assert user["content"] == [{"type": "image", "image": pictures.name(path)}, block]
    _, user = sent(messages, pictures)
    assert user["content"] == [{"type": "image_url", "image_url": {"url": pictures.url(path)}}, block]


# Files


def test_a_folder_replaces_some_files(tmp_path):
    prompts, own = mine(tmp_path, reasoning=SHORT["reasoning"] + "\n\n"), load_prompts(None)
    assert prompts.texts["reasoning"] == SHORT["reasoning"]
    assert {**prompts.texts, "reasoning": ""} == {**own.texts, "reasoning": ""}
    assert prompts.replacements == own.replacements


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("reasoning", "{description} {passages}", "reasoning.txt lacks {question}; without it the model"),
        ("reasoning", "{question} {description}", "lacks {passages}"),
        ("description", "{question} {pseudo_cot} {description}", "the unknown placeholder {description}; it can use"),
        ("pseudo_cot", "{question} {question}", "has {question} twice"),
        ("pseudo_cot", '{question} {"a": 1}', "the unknown placeholder"),
        ("pseudo_cot", "{question} \\boxed{", "has a stray brace"),
        ("pseudo_cot", "{question!r}", "the unknown placeholder {question!r}"),
        ("pseudo_cot", "{question} <|im_end|>", r"spells the model token <\|im_end\|>"),
        ("passage", "{number}", "lacks {text}"),
        ("resoning", "{question}", "holds resoning.txt, which is no prompt; the files are pseudo_cot.txt"),
        ("replacements", "a = b", r"replacements.txt:1 is no rule"),
        ("replacements", "# fine\n\n( => b", r"replacements.txt:3 is no regular expression"),
        ("replacements", r"a => \1", r"replacements.txt:1 is no regular expression and text: invalid group"),
        ("replacements", "a* => b", r"replacements.txt:1 matches where there is no text"),
        (None, None, "holds no prompt"),
    ],
)
def test_files_that_are_refused(tmp_path, name, text, words):
    with pytest.raises(InputError, match=words.replace("{", r"\{")):
        mine(tmp_path, **({name: text} if name else {}))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        load_prompts(str(tmp_path / "none"))
    (tmp_path / "passage.txt").write_bytes("Größe {text}".encode("latin-1"))
    with pytest.raises(InputError, match="byte 3 is not UTF-8"):
        load_prompts(str(tmp_path))


def test_replacements():
    rules = read_replacements("# words\n  (big|large) dogs? => \\1 cat\n\nwell,  =>\ncat => tiger", "mine")
    assert reword("Big dog! A large dog. Well, so be it.", rules) == "Big tiger! A large tiger.  so be it."
