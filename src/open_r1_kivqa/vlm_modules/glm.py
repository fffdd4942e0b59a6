"""GLM-4.1V (GLM-4.1V-9B-Base and -Thinking): images are resized to a pixel area, as for Qwen-VL, but the processor counts that area once for each of the two frames that a still image fills."""

from .base import THOUSANDTHS
from .qwen import QwenVL


class GLM4V(QwenVL):
    """Writes boxes in thousandths of the image: [x1, y1, x2, y2], often between <|begin_of_box|> and <|end_of_box|> (the model card's part on grounding; arXiv 2507.01006, appendix)."""

    family = "GLM-4.1V"
    model_types = ("glm4v",)
    projector = ("model.visual.merger", "model.visual.downsample")

    def times_counted(self, image_processor) -> int:
        return image_processor.temporal_patch_size

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        return THOUSANDTHS
