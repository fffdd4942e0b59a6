"""Encoders: pictures and texts to vectors of length 1, by colour thumbnails or by checkpoints that transformers knows."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

from ..data.images import load_image
from ..errors import InputError
from . import checkpoints, colour
from .sentence_files import read_settings

IMAGE_BATCH, TEXT_BATCH = 64, 64
THREADS = 4  # that decode pictures


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
        grey = Image.new("RGB", (224, 224), (128, 128, 128))
        self.dim = _probe(name, lambda: self.encode_images([grey]), "picture").shape[1]

    def encode_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        import torch

        inputs = self._processor(images=list(images), return_tensors="pt").to(self.device)
        kind = self._model.dtype
        inputs = {name: value.to(kind) if value.is_floating_point() else value for name, value in inputs.items()}
        compute = getattr(self._model, "get_image_features", self._model)
        try:
            with torch.inference_mode():
                return _unit(self._vectors(compute(**inputs)), self.name)
        except torch.OutOfMemoryError:
            raise InputError(
                f"{len(images)} pictures at a time are too many for the memory of {self.device}; give a smaller --batch_size."
            ) from None

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
        self._settings = read_settings(name, folder)
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except (OSError, ValueError, ImportError) as error:
            raise InputError(
                f"Encoder {name} has no tokenizer that can be read. ({str(error).splitlines()[0]})"
            ) from error
        self._model, missing = checkpoints.load_model(name, folder, AutoModel, dtype, device)
        checkpoints.refuse_missing(name, [key for key in missing if not key.startswith("pooler.")])
        longest = getattr(self._model.config, "max_position_embeddings", None)
        limits = (self._settings.limit, self._tokenizer.model_max_length, longest)
        self._limit = min(limit for limit in limits if limit)
        self.name, self.batch_size, self.device = name, batch_size, device
        self.fingerprint = checkpoints.fingerprint(folder, checkpoints.TEXT_FILES)
        self.dim = _probe(name, lambda: self._encode(["a"]), "text").shape[1]

    def encode(self, texts: Sequence[str], role: str = "") -> np.ndarray:
        """(texts, dim) float32, rows of length 1. Texts are cut at the model's limit.

        Args:
            role: "query" or "document", for checkpoints that put other words before the one than before the other; "" takes what such a checkpoint puts before any text.
        """
        prompt = self._settings.prompts[role]
        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        # Long texts together: a batch is as wide as its longest.
        order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), i))
        for chosen in _batched(order, self.batch_size):
            vectors[chosen] = self._encode([prompt + texts[i] for i in chosen])
        return vectors

    def pieces(self, text: str, role: str = "") -> list[str]:
        """The text, cut into as many pieces as it takes for each to be read whole."""
        before = len(self._tokenizer(self._settings.prompts[role], add_special_tokens=False)["input_ids"])
        spans = self._tokenizer(
            text,
            truncation=True,
            max_length=self._limit - before,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )["offset_mapping"]
        # Special tokens have empty spans.
        ends = [max(end for _, end in span) for span in spans]
        return [text] if len(ends) < 2 else [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _encode(self, texts: list[str]) -> np.ndarray:
        import torch

        if self._settings.lower_case:
            texts = [text.lower() for text in texts]
        inputs = self._tokenizer(texts, padding=True, truncation=True, max_length=self._limit, return_tensors="pt")
        inputs = inputs.to(self.device)
        with torch.inference_mode():
            hidden = self._model(**inputs).last_hidden_state
            mask = inputs["attention_mask"]
            if self._settings.pooling == "cls":
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


def _probe(name: str, encode: Callable[[], np.ndarray], what: str) -> np.ndarray:
    """What is encoded for a try; `InputError` if the model takes other things than one picture or one text."""
    try:
        return encode()
    except InputError:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise InputError(
            f"Encoder {name} does not give a {what} one vector ({type(error).__name__}: {error}); give a model that does."
        ) from error


def _unit(vectors, name: str) -> np.ndarray:
    rows = vectors.float().cpu().numpy()
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise InputError(
            f"Encoder {name} gave vectors that are zero or not finite; give --dtype float32, or another checkpoint."
        )
    return rows / lengths
