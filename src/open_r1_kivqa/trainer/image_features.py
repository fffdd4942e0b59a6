"""What a frozen vision tower makes of a picture is computed once for a generation batch.

A batch's pictures are wanted by the prefill of generation, by the old and the reference log-probs and by every pass of the loss, and rows of one prompt that don't meet in a micro-batch want them once more. With tower
and projector frozen, all get the same. Here the model's `get_image_features` is replaced for the time of such a pass: pictures that it has seen are answered from memory, the others go through the tower together.
The forward's inputs stay as they are, so this holds for every wrapper, every way to pack rows, and plain generation.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from ..errors import InputError
from .shared_prefix import plain_model

SAMPLED = 32  # values of a picture that tell most others apart before all are compared


@dataclass
class _Picture:
    """Pixels of one picture (for InternVL: one tile) and its features; `deep` holds those of Qwen3-VL's inner layers."""

    pixels: torch.Tensor
    grid: torch.Tensor | None
    kind: type | None = None  # of the tower's output
    pooled: torch.Tensor | None = None
    deep: tuple[torch.Tensor, ...] | None = None


class ImageFeatures:
    """Features of the pictures seen since the last `clear`. Holds, for each, its pixels and its tokens times the language model's width (for Qwen3-VL once more for each inner layer that it feeds on).

    Attributes:
        computed: number of pictures that went through the tower, over all time.
    """

    def __init__(self):
        self._pictures: dict[tuple, list[_Picture]] = {}
        self.computed = 0
        self._one_piece = False  # transformers 5.17 gives an inner layer's features of all pictures in one piece

    def clear(self) -> None:
        self._pictures.clear()

    @contextmanager
    def used_by(self, model) -> Iterator[None]:
        """Within it the transformers model takes features from here, in its forward and in `generate`."""
        inner = model.base_model
        compute = inner.get_image_features

        @wraps(compute)  # `generate` reads its parameters
        def get_image_features(pixel_values, image_grid_thw=None, **kwargs):
            return self.of(compute, pixel_values, image_grid_thw, **kwargs)

        inner.get_image_features = get_image_features
        try:
            yield
        finally:
            del inner.get_image_features

    def of(self, compute: Callable, pixel_values: torch.Tensor, image_grid_thw: torch.Tensor | None, **kwargs):
        """As the model's own `get_image_features`, `compute`, without a gradient and without the tower's hidden states.

        Args:
            pixel_values: (patches of all pictures, values) with image_grid_thw, (pictures, 3); or (tiles, channels, height, width) without.
        """
        if image_grid_thw is None:
            pictures, grids = pixel_values.split(1), [None] * len(pixel_values)
        else:
            pictures, grids = pixel_values.split(image_grid_thw.prod(dim=-1).tolist()), image_grid_thw.split(1)
        wanted = [self._known(picture, grid) for picture, grid in zip(pictures, grids, strict=True)]
        fresh = list({id(one): one for one in wanted if one.pooled is None}.values())
        if fresh:
            self.computed += len(fresh)
            if image_grid_thw is not None:
                kwargs["image_grid_thw"] = torch.cat([one.grid for one in fresh])
            with torch.no_grad():
                outputs = compute(pixel_values=torch.cat([one.pixels for one in fresh]), **kwargs)
            layers = getattr(outputs, "deepstack_features", None)
            self._one_piece = layers is not None and isinstance(layers[0], torch.Tensor)
            if self._one_piece:
                sizes = [len(pooled) for pooled in outputs.pooler_output]
                layers = [layer.split(sizes) for layer in layers]
            for i, one in enumerate(fresh):
                one.kind, one.pooled = type(outputs), outputs.pooler_output[i]
                one.deep = None if layers is None else tuple(layer[i] for layer in layers)
        pooled = tuple(one.pooled for one in wanted)
        features = {"pooler_output": torch.stack(pooled) if image_grid_thw is None else pooled}
        if wanted[0].deep is not None:
            layers = zip(*(one.deep for one in wanted), strict=True)
            features["deepstack_features"] = [torch.cat(layer) if self._one_piece else layer for layer in layers]
        return wanted[0].kind(**features)

    def _known(self, picture: torch.Tensor, grid: torch.Tensor | None) -> _Picture:
        """The picture of these very pixels, new or not. Under another autocast the tower rounds in another way, so it counts as another one."""
        device = picture.device.type
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        shape = tuple(picture.shape) if grid is None else tuple(grid[0].tolist())
        sample = picture.flatten()[:: max(1, picture.numel() // SAMPLED)].tolist()
        alike = self._pictures.setdefault((shape, picture.dtype, precision, *sample), [])
        for one in alike:
            if torch.equal(one.pixels, picture):
                return one
        alike.append(_Picture(picture.clone(), grid))  # a slice would keep the whole batch's pixels
        return alike[-1]


class ImageFeaturesMixin:
    """For `VLMGRPOTrainer`, once `prepare_image_features` was called. `self.module` is the family's."""

    _features: ImageFeatures | None = None
    _reference_features: ImageFeatures | None = None  # where the reference's tower is another

    def prepare_image_features(self) -> None:
        """Turns reuse on where it is exact. Says why not where the tower is frozen all the same; raises InputError where --reuse_image_features asks for it in vain."""
        asked = self.args.reuse_image_features
        if asked is False:
            return
        model = plain_model(self.accelerator, self.model)
        why = self._why_not(model)
        if why is None:
            self._features = ImageFeatures()
        elif asked:
            raise InputError(f"--reuse_image_features can't be had: {why}. Leave the flag out, or change that.")
        elif not trains(model, self.module, "vision") and self.accelerator.is_main_process:
            print(f"The vision tower runs in every pass (--reuse_image_features has no effect): {why}.", flush=True)

    def _why_not(self, model) -> str | None:
        if trains(model, self.module, "vision"):
            return "the vision tower trains (--freeze_vision_modules keeps it as it is)"
        if trains(model, self.module, "projector"):
            return "the projector trains (--freeze_projector keeps it as it is)"
        if drops_out(model, self.module):
            return "the vision tower drops values at random (--disable_dropout true ends that, or an attention_dropout of 0 in vision_config)"
        plugin = self.accelerator.state.deepspeed_plugin if self.is_deepspeed_enabled else None
        if self.is_fsdp_enabled or (plugin is not None and plugin.zero_stage == 3):
            return "the tower's weights are shared out among the processes, which must all run it in every pass"
        if self.args.torch_compile:
            return "--torch_compile would compile each pass anew"
        return None

    def forget_features(self) -> None:
        """A new generation batch begins. At the first one weights are final, a checkpoint's loaded, and the reference's tower is compared."""
        if self._features is None:
            return
        self._features.clear()
        if self.ref_model is None:
            return
        if self._reference_features is None:
            models = [plain_model(self.accelerator, one) for one in (self.model, self.ref_model)]
            # A reference that follows the model is rounded on its way, even where both were equal.
            shared = not self.args.sync_ref_model and equal_towers(*models, self.module)
            self._reference_features = self._features if shared else ImageFeatures()
        self._reference_features.clear()

    @contextmanager
    def features_reused(self, model) -> Iterator[None]:
        """Within it passes of `model`, wrapped or not, the reference or the one that trains, take the batch's features from memory."""
        if self._features is None:
            yield
            return
        store = self._reference_features if model is self.ref_model else self._features
        with store.used_by(plain_model(self.accelerator, model)):
            yield


def trains(model, module, part: str) -> bool:
    """Whether any weight of the part trains, or an adapter sits there, which the reference pass switches off."""
    weights = (name for name, one in model.named_parameters() if one.requires_grad)
    adapters = (name for name, one in model.named_modules() if isinstance(one, BaseTunerLayer))
    return any(module.parameter_part(name) == part for names in (weights, adapters) for name in names)


def drops_out(model, module) -> bool:
    """Whether tower or projector drop values at random in training."""
    for name, one in model.named_modules():
        rate = one.p if isinstance(one, torch.nn.Dropout) else getattr(one, "attention_dropout", 0)
        if rate and module.parameter_part(name) != "language":
            return True
    return False


def equal_towers(model, other, module) -> bool:
    """Whether tower and projector of both are the same to the bit."""
    mine, theirs = (
        {
            name: one
            for named in (its.named_parameters(), its.named_buffers())
            for name, one in named
            if module.parameter_part(name) != "language"
        }
        for its in (model, other)
    )
    return mine.keys() == theirs.keys() and all(
        one.dtype == theirs[name].dtype and torch.equal(one, theirs[name]) for name, one in mine.items()
    )
