"""BEM in PyTorch, as a tiny random BERT: its input and output against the form that the published retraining documents."""

import json
import shutil

import numpy as np
import pytest
from scoring import BEM_POSITIONS, BEM_WORDS, EVQA, evqa_file, evqa_predictions, kivqa_score, make_bem, scored

from open_r1_kivqa.benchmarks.judges import Bem
from open_r1_kivqa.errors import InputError

PAIRS = [
    ("paris", "the city", "where is it?"),
    ("in paris", "paris", "where is it?"),
    ("6", "six", "what is it?"),
    ("", "paris", "where?"),
    ("a", "b", "c"),
    ("it is in the paris", "paris", "where"),
    ("x y z", "z", "what is the z?"),
]


@pytest.fixture(scope="module")
def bem(tmp_path_factory):
    return make_bem(tmp_path_factory.mktemp("bem"))


def published(folder, pairs, label=1) -> list[float]:
    """Probabilities as the model card of kortukov/answer-equivalence-bem computes them, one by one and padded to the model's length."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = []
    for candidate, reference, question in pairs:
        text, text_pair = f"[CLS] {candidate} [SEP]", f"{reference} [SEP] {question} [SEP]"
        settings = {"padding": "max_length", "truncation": True, "max_length": BEM_POSITIONS, "return_tensors": "pt"}
        inputs = tokenizer(text=text, text_pair=text_pair, add_special_tokens=False, **settings)
        with torch.no_grad():
            found.append(float(model(**inputs).logits.softmax(dim=-1)[0, label]))
    return found


def test_probabilities_are_those_of_the_model_card(bem):
    expected = published(bem, PAIRS)
    assert min(expected) < 0.4 and max(expected) > 0.6
    judge = Bem(bem)
    np.testing.assert_allclose(judge.probabilities(PAIRS), expected, atol=1e-5)
    assert judge(PAIRS) == [probability >= 0.5 for probability in expected]
    assert judge.name == f"BEM (PyTorch retraining, {bem})" and judge.cut == 0


def test_a_batch_is_judged_as_one_by_one(bem):
    alone = Bem(bem, batch_size=1)
    for size in (2, 3, 64):
        np.testing.assert_allclose(
            Bem(bem, batch_size=size).probabilities(PAIRS), alone.probabilities(PAIRS), atol=1e-5
        )
    assert Bem(bem)(PAIRS) == [Bem(bem)([pair])[0] for pair in PAIRS]
    assert Bem(bem)([]) == []


def test_the_other_label(bem):
    np.testing.assert_allclose(
        Bem(bem, equivalent=0).probabilities(PAIRS), 1 - Bem(bem).probabilities(PAIRS), atol=1e-6
    )


def test_one_half_counts(bem, tmp_path):
    from transformers import AutoModelForSequenceClassification

    folder = shutil.copytree(bem, tmp_path / "half")
    model = AutoModelForSequenceClassification.from_pretrained(bem)
    model.classifier.weight.data.zero_()
    model.classifier.bias.data.zero_()
    model.save_pretrained(folder)
    judge = Bem(str(folder))
    assert judge.probabilities(PAIRS[:2]).tolist() == [0.5, 0.5] and judge(PAIRS[:2]) == [True, True]


def test_a_long_candidate_is_cut_and_counted(bem):
    """24 positions, 4 of them [CLS] and [SEP], 1 reference, 4 question: 15 pieces are left for the candidate."""
    judge = Bem(bem)
    fits, long = "a " * 15, "a " * 16 + "b"
    rest = ("paris", "where is it?")
    assert judge.probabilities([(fits, *rest)]) == judge.probabilities([(long, *rest)]) and judge.cut == 1
    with np.testing.assert_raises(AssertionError):
        np.testing.assert_array_equal(judge.probabilities([("a " * 14, *rest)]), judge.probabilities([(fits, *rest)]))
    judge([(long, *rest), ("a", *rest), (long, "paris " * 30, "where " * 30)])
    assert judge.cut == 3


def test_a_candidate_cannot_spell_tokens(bem):
    """The candidate of the third pair would end its own segment and put the reference there."""
    judge = Bem(bem)
    inputs = judge._inputs([("x", "paris", "where?"), ("[SEP]", "paris", "where?"), ("paris [SEP] paris", "b", "c")])
    for pieces, first in inputs:
        assert pieces.count(BEM_WORDS.index("[SEP]")) == 3 and pieces.count(BEM_WORDS.index("[CLS]")) == 1
        assert pieces[first - 1] == BEM_WORDS.index("[SEP]")


def test_it_judges_predictions(bem, tmp_path, capsys):
    words = ["evqa", "--references", evqa_file(tmp_path / "test.csv"), "--judge", f"bem:{bem}"]
    result = scored(capsys, *words, "--predictions", evqa_predictions(tmp_path / "p.jsonl"))
    left = [(i, row) for i, row in enumerate(EVQA) if not row[4]]
    pairs = [(row[3], row[1].replace("&&", ","), row[0]) for _, row in left]
    verdicts = Bem(bem)(pairs)
    judge = Bem(bem)
    judge(pairs)
    assert result["judge"] == f"BEM (PyTorch retraining, {bem})"
    assert result["scores"]["judged"] == {"pairs": 3, "cut": judge.cut, "unclear": 0}
    assert result["scores"]["all"]["score"] == pytest.approx(100 * (4 + sum(verdicts)) / 7)
    assert result["scores"]["all"]["exact"] == pytest.approx(400 / 7)


def broken(bem, folder, kind):
    from transformers import AutoModel

    shutil.copytree(bem, folder)
    if kind == "no head":
        AutoModel.from_pretrained(bem).save_pretrained(folder)
    elif kind == "three classes":
        config = json.loads((folder / "config.json").read_text())
        from transformers import BertConfig, BertForSequenceClassification

        BertForSequenceClassification(BertConfig(**(config | {"num_labels": 3}))).save_pretrained(folder)
    elif kind == "no weights":
        (folder / "model.safetensors").unlink()
    return str(folder)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("no head", "without a trained head of two classes (missing: classifier.bias, classifier.weight"),
        ("three classes", "classes: 3"),
        ("no weights", "cannot be loaded"),
    ],
)
def test_checkpoints_that_are_no_judge(bem, tmp_path, kind, message):
    with pytest.raises(InputError) as error:
        Bem(broken(bem, tmp_path / "broken", kind))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bem_label", "2"], "--bem_label 2: 0 or 1 is wanted"),
        (["--bem_batch_size", "0"], "--bem_batch_size 0: at least 1 is wanted"),
        (["--bem_device", "abacus"], "--bem_device abacus cannot be used"),
    ],
)
def test_flags(bem, tmp_path, capsys, words, message):
    given = ["--references", evqa_file(tmp_path / "test.csv"), "--predictions", evqa_predictions(tmp_path / "p.jsonl")]
    code, out, err = kivqa_score(capsys, "evqa", *given, "--judge", f"bem:{bem}", *words)
    assert code == 2 and out == "" and message in err
