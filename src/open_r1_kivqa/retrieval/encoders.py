"""Encoders: pictures and texts to vectors of length 1, by colour thumbnails or by checkpoints that transformers knows."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from ..data.images import load_image
from ..errors import InputError
from . import checkpoints, colour

IMAGE_BATCH, TEXT_BATCH = 64, 64
THREADS = 4  # that decode pictures
POOLINGS = ("mean", "cls")  # of texts
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers' folders, in this order


class ImageEncoder:
    """Pictures to vectors.

    Attributes:
        name: what was given.
        fingerprint: sha256 of all that the vectors depend on: weights, config and preprocessing.
        dim: length of a vector.
        batch_size: pictures computed at a time.
    """

    name: str
    fingerprint: str
    dim: int
    batch_size: int

    def encode(self, paths: Sequence[str]) -> np.ndarray:
        """(paths, dim) float32, rows of length 1; InputError for a picture that cannot be read."""
        vectors = np.empty((len(paths), self.dim), dtype=np.float32)
        start = 0
        for images in load_batches(paths, self.batch_size):
            for image in images:
                if isinstance(image, InputError):
                    raise image
            vectors[start : start + len(images)] = self.encode_images(images)
            start += len(images)
        return vectors

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        """The same for one batch of pictures as `load_image` gives them."""
        raise NotImplementedError


def load_image_encoder(
    name_or_path: str, device: str | None = None, batch_size: int = IMAGE_BATCH, dtype: str | None = None
) -> ImageEncoder:
    """ "colour", or a checkpoint of CLIP, SigLIP, DINOv2 or another model of transformers that gives a picture one vector.

    Args:
        name_or_path: a folder, or a name on the hub. A folder called "colour" is given as "./colour".
        device: None takes a GPU if there is one.
        dtype: "float32", "float16" or "bfloat16"; None: float32 on a CPU, else as saved.

    Raises:
        InputError: no such checkpoint, weights missing, code of its own needed, no image encoder.
    """
    if batch_size < 1:
        raise InputError(f"The batch size is {batch_size}; give 1 or more.")
    if name_or_path == "colour":
        return ColourEncoder(batch_size)
    return ModelImageEncoder(name_or_path, checkpoints.choose_device(device), batch_size, dtype)


class ColourEncoder(ImageEncoder):
    """Colour thumbnails, see colour.py."""

    def __init__(self, batch_size: int = IMAGE_BATCH):
        self.name, self.batch_size = "colour", batch_size
        self.fingerprint = hashlib.sha256(colour.VERSION.encode()).hexdigest()
        self.dim = self.encode_images([Image.new("RGB", (12, 9))]).shape[1]

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        return colour.colour_vectors(images)


class ModelImageEncoder(ImageEncoder):
    """A checkpoint's image features: projected ones where it has them (CLIP, SigLIP), else its pooled output, else that of its first token."""

    def __init__(self, name: str, device: str, batch_size: int, dtype: str | None = None):
        import transformers

        folder = checkpoints.checkpoint_folder(name)
        try:
            self._processor = transformers.AutoImageProcessor.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise InputError(
                f"Encoder {name} has no image processor that can be read: copy preprocessor_config.json of the model into its folder. ({str(error).splitlines()[0]})"
            ) from error
        architecture = (checkpoints.read_json(folder / "config.json").get("architectures") or [""])[0]
        # transformers' AutoModel leaves out the projection of a vision tower that was saved alone.
        projected = architecture.endswith("WithProjection")
        kind = getattr(transformers, architecture) if projected else transformers.AutoModel
        self._model, missing = checkpoints.load_model(name, folder, kind, dtype, device)
        # Checkpoints of classifiers lack the pooler that the bare model has.
        self._pooled = not any(key.startswith("pooler.") for key in missing)
        checkpoints.refuse_missing(name, [key for key in missing if not key.startswith("pooler.")])
        self.name, self.batch_size, self.device = name, batch_size, device
        self.fingerprint = checkpoints.fingerprint(folder, checkpoints.IMAGE_FILES)
        self.dim = self.encode_images([Image.new("RGB", (224, 224), (128, 128, 128))]).shape[1]

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        import torch

        inputs = self._processor(images=list(images), return_tensors="pt").to(self.device)
        with torch.inference_mode():
            inputs = {
                name: value.to(self._model.dtype) if value.is_floating_point() else value
                for name, value in inputs.items()
            }
            if hasattr(self._model, "get_image_features"):
                output = self._model.get_image_features(**inputs)
            else:
                output = self._model(**inputs)
            return _unit(self._vectors(output), self.name)

    def _vectors(self, output):
        for field in ("image_embeds", "pooler_output"):
            value = getattr(output, field, None)
            if value is not None and (self._pooled or field != "pooler_output"):
                output = value
                break
        else:
            hidden = getattr(output, "last_hidden_state", None)
            output = output if hidden is None else hidden[:, 0]
        if getattr(output, "ndim", 0) == 4:  # convolutional models pool to (n, dim, 1, 1)
            output = output.flatten(1)
        if getattr(output, "ndim", 0) != 2:
            raise InputError(
                f"Encoder {self.name} does not give a picture one vector; give a CLIP, SigLIP or DINO model."
            )
        return output


class TextEncoder:
    """Texts to vectors by a plain transformers model: hidden states averaged over the words (or the first one's), as a sentence-transformers folder says.

    Attributes: as of `ImageEncoder`.
    """

    def __init__(self, name: str, device: str, batch_size: int = TEXT_BATCH, dtype: str | None = None):
        from transformers import AutoModel, AutoTokenizer

        folder = checkpoints.checkpoint_folder(name)
        self._pooling, pooled_at = _pooling(name, folder)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise InputError(
                f"Encoder {name} has no tokenizer that can be read. ({str(error).splitlines()[0]})"
            ) from error
        self._model, missing = checkpoints.load_model(name, folder, AutoModel, dtype, device)
        checkpoints.refuse_missing(name, [key for key in missing if not key.startswith("pooler.")])
        self._limit = _token_limit(folder, self._tokenizer, self._model.config)
        self.name, self.batch_size, self.device = name, batch_size, device
        self.fingerprint = checkpoints.fingerprint(folder, checkpoints.TEXT_FILES)
        self.dim = self.encode(["a"]).shape[1]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, dim) float32, rows of length 1. Texts are cut at the model's limit."""
        vectors = None
        # Long texts together: a batch is as wide as its longest.
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), i))
        for chosen in (
            itertools.batched(order, self.batch_size)
            if hasattr(itertools, "batched")
            else _batched(order, self.batch_size)
        ):
            found = self._encode([texts[i] for i in chosen])
            if vectors is None:
                vectors = np.empty((len(texts), found.shape[1]), dtype=np.float32)
            vectors[list(chosen)] = found
        return np.empty((0, self.dim), dtype=np.float32) if vectors is None else vectors

    def pieces(self, text: str) -> list[str]:
        """The text, cut into as many pieces as it takes for each to be read whole."""
        spans = self._tokenizer(
            text, truncation=True, max_length=self._limit, return_overflowing_tokens=True, return_offsets_mapping=True
        )["offset_mapping"]
        # Special tokens have empty spans.
        ends = [max(end for _, end in span) for span in spans]
        return [text] if len(ends) < 2 else [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _encode(self, texts: list[str]) -> np.ndarray:
        import torch

        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=self._limit, return_tensors="pt")
        inputs = inputs.to(self.device)
        with torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"]
            if self._pooling == "cls":
                first = mask.argmax(dim=1)  # not 0 where the tokenizer pads on the left
                pooled = hidden[torch.arange(len(hidden), device=hidden.device), first]
            else:
                mask = mask.unsqueeze(-1).to(torch.float32)
                pooled = (hidden.float() * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
            return _unit(pooled, self.name)


def load_text_encoder(
    name_or_path: str, device: str | None = None, batch_size: int = TEXT_BATCH, dtype: str | None = None
) -> TextEncoder:
    """A text encoder by its folder or its name on the hub; a sentence-transformers folder works as it is.

    Raises:
        InputError: no such checkpoint, weights missing, code of its own needed, a pooling or module that is not known here.
    """
    return TextEncoder(name_or_path, checkpoints.choose_device(device), batch_size, dtype)


def load_batches(paths: Sequence[str], size: int) -> Iterator[list[Image.Image | InputError]]:
    """Pictures in batches of `size` (the last may be smaller), in place of a broken one its error. The next batch is decoded while one is in use."""
    with ThreadPoolExecutor(THREADS) as pool:
        following = None
        for batch in _batched(paths, size):
            current, following = following, [pool.submit(_load, path) for path in batch]
            if current is not None:
                yield [future.result() for future in current]
        if following is not None:
            yield [future.result() for future in following]


def _load(path: str) -> Image.Image | InputError:
    try:
        return load_image(path)
    except InputError as error:
        return error


def _batched(items: Iterable, size: int) -> Iterator[list]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def _pooling(name: str, folder: Path) -> tuple[str, Path | None]:
    """How a folder says that words become a text: "mean" without a word on it."""
    import json

    if not (folder / "modules.json").is_file():
        return "mean", None
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    kinds = [module["type"].rpartition(".")[2] for module in modules]
    if [kind for kind in MODULES if kind in kinds] != kinds or kinds[:1] != ["Transformer"]:
        raise InputError(
            f"Encoder {name} is made of {', '.join(kinds)}; known are {', '.join(MODULES)}, in this order."
        )
    path = next(
        (
            folder / module["path"] / "config.json"
            for module, kind in zip(modules, kinds, strict=True)
            if kind == "Pooling"
        ),
        None,
    )
    if path is None:
        return "mean", None
    config = checkpoints.read_json(path)
    modes = (
        [config["pooling_mode"]]
        if "pooling_mode" in config
        else [
            key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
            for key, on in config.items()
            if key.startswith("pooling_mode_") and on is True
        ]
    )
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise InputError(
            f"Encoder {name} pools by {' and '.join(map(str, modes)) or 'nothing'}; known are {', '.join(POOLINGS)}."
        )
    return modes[0], path


def _token_limit(folder: Path, tokenizer, config) -> int:
    path = folder / "sentence_bert_config.json"
    limit = checkpoints.read_json(path).get("max_seq_length") if path.is_file() else None
    limits = [limit, tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    return min(value for value in limits if value)


def _unit(vectors, name: str) -> np.ndarray:
    rows = vectors.float().cpu().numpy()
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise InputError(
            f"Encoder {name} gave vectors that are zero or not finite; give --dtype float32, or another checkpoint."
        )
    return rows / lengths
