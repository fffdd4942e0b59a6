"""Small files of the benchmarks' own forms, and `kivqa score` called on files."""

import json

from evqa_fixture import write_csv
from published_factbook import write_lines as lines

from open_r1_kivqa.cli import main

# data_id, question type, answer_eval, data_split; then a prediction and, found by hand, whether it is right.
INFOSEEK = [
    ("q1", "String", ["Spain", "Kingdom of Spain"], "val_unseen_question", "the Kingdom of Spain.", True),
    ("q2", "String", ["Paris"], "val_unseen_question", "PARIS", True),
    ("q3", "String", ["Paris"], "val_unseen_question", "It is Paris", False),
    ("q4", "Numerical", [{"wikidata": 1.0, "range": [0.9, 1.1]}], "val_unseen_question", "about 1.05 km", True),
    ("q5", "Time", ["1990", "1990-01-01"], "val_unseen_question", "1991", False),
    ("e1", "String", ["Oak"], "val_unseen_entity", "an oak", True),
    ("e2", "String", ["Oak"], "val_unseen_entity", "beech", False),
    ("e3", "Time", ["1889"], "val_unseen_entity", "1889", True),
    ("e4", "Numerical", [{"wikidata": 330.0, "range": [297.0, 363.0]}], "val_unseen_entity", "250 m", False),
]
# By hand: unseen_question 3 of 5, unseen_entity 2 of 4, 5 of 9 in all; harmonic mean 2·60·50/110.
QUESTION, ENTITY, MEAN, HARMONIC = 60.0, 50.0, 55.56, 54.55

# question, answer, question type; then a prediction, and whether it is right by exact match.
EVQA = [
    ("Where is it?", "Paris", "templated", "paris", True),
    ("Where is it?", "Paris|City of Paris", "templated", "the city of Paris", True),
    ("How many legs?", "six", "automatic", "6", True),
    ("Where is it?", "Paris", "automatic", "It is in Paris", False),
    ("What does it eat?", "mice&&birds&&eggs", "multi_answer", "birds and mice", True),
    ("What does it eat?", "mice&&birds&&eggs", "multi_answer", "fish, mice", False),
    ("Who built it?", "Gustave Eiffel", "2_hop", "Eiffel", False),
]
# By hand: templated 2 of 2, automatic 1 of 2, multi_answer 1 of 2, 2_hop 0 of 1; single-hop 4 of 6, all 4 of 7.
SINGLE_HOP, ALL = 400 / 6, 400 / 7

LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,&?[]'"]
BEM_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "paris", "the", "in", "it", "is", "what", "where", "##s"]
BEM_POSITIONS = 24


def predictions(path, pairs) -> str:
    return lines(path, [{"data_id": id, "prediction": text} for id, text in pairs])


def infoseek_files(folder) -> list[str]:
    """The flags of InfoSeek's two files."""
    rows = [
        {"data_id": id, "image_id": "oven_0", "question": "Q?", "answer": ["x"], "answer_eval": answers, "data_split": split}
        for id, _, answers, split, *_ in INFOSEEK
    ]  # fmt: skip
    types = [{"data_id": id, "question_type": kind} for id, kind, *_ in INFOSEEK]
    references = lines(folder / "infoseek_val.jsonl", rows)
    return ["--references", references, "--question_types", lines(folder / "infoseek_val_qtype.jsonl", types)]


def infoseek_predictions(path, without=(), more=()) -> str:
    pairs = [(id, prediction) for id, _, _, _, prediction, _ in INFOSEEK if id not in without]
    return predictions(path, [*pairs, *more])


def evqa_file(path, rows=EVQA) -> str:
    named = [dict(zip(("question", "answer", "question_type"), row, strict=False)) for row in rows]
    return str(write_csv(path, named))


def evqa_predictions(path, ids=None) -> str:
    return predictions(path, zip(ids or range(len(EVQA)), [row[3] for row in EVQA], strict=True))


def kivqa_score(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `kivqa score`."""
    capsys.readouterr()
    code = main(["score", *words])
    return (code, *capsys.readouterr())


def scored(capsys, *words: str) -> dict:
    """The object that --json prints, and nothing else on stdout."""
    code, out, _ = kivqa_score(capsys, *words, "--json")
    assert code == 0
    return json.loads(out)


def make_bem(folder) -> str:
    """A folder as that of kortukov/answer-equivalence-bem, but tiny, random, and with 24 positions."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    words = [*BEM_WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    BertTokenizer(vocab={word: i for i, word in enumerate(words)}, do_lower_case=True).save_pretrained(folder)
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=BEM_POSITIONS,
        initializer_range=0.5,  # probabilities on both sides of one half
    )
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    return str(folder)
