"""Where a model's boxes lie in the row's image: each family writes coordinates in a frame of its own (`VLMModule.frame`), while rows hold pixels of the image file."""

from ..data.images import image_size
from ..data.samples import Sample
from .base import VLMModule


class BoxScale:
    """What turns the coordinates of a model's boxes into pixels of the row's own image. Sizes are read off the image files' headers, each file once.

    Args:
        processor: the model's, with its image limits set: they decide what Qwen2.5-VL's coordinates mean.
    """

    def __init__(self, module: VLMModule, processor):
        self.module = module
        self.processor = processor
        self._scales: dict[str, tuple[float, float]] = {}

    def __call__(self, sample: Sample) -> tuple[float, float]:
        """(sx, sy): a box of the model at (x, y) is at (x * sx, y * sy) in pixels of the row's first image; (1.0, 1.0) for a row without image.

        Raises:
            InputError: an image that can't be read, or of a shape that the processor refuses.
        """
        if not sample.images:
            return 1.0, 1.0
        path = sample.images[0]
        if path not in self._scales:
            width, height = image_size(path)
            frame_width, frame_height = self.module.frame(self.processor, width, height)
            self._scales[path] = width / frame_width, height / frame_height
        return self._scales[path]
