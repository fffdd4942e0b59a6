"""GLM-4.1V (GLM-4.1V-9B-Thinking): images are resized to a pixel area, as for Qwen-VL, but the processor counts that area once for each of the two frames that a still image fills.

Its own chat template reads lists of blocks in user turns only, while TRL hands over every turn as such a list: a system prompt or a response would be shown to the model as Python's spelling of that list. And it
puts no token after a response, since the token that opens the next user turn ends it. `prepare` mends both.
"""

from .base import THOUSANDTHS
from .qwen import QwenVL

# Text blocks of other turns than the user's become plain text before the model's own template reads the messages.
BLOCKS_TO_TEXT = """{%- set plain = namespace(messages=[]) -%}
{%- for message in messages -%}
{%- if message['role'] != 'user' and message['content'] is not string and message['content'] is iterable -%}
{%- set plain.messages = plain.messages + [dict(message, content=message['content'] | map(attribute='text') | join)] -%}
{%- else -%}
{%- set plain.messages = plain.messages + [message] -%}
{%- endif -%}
{%- endfor -%}
{%- set messages = plain.messages -%}
"""
# What the model itself writes after a response: one of its end tokens.
TURN_END = "{% if messages[-1]['role'] == 'assistant' and not add_generation_prompt -%}<|user|>{%- endif -%}"


class GLM4V(QwenVL):
    """Writes boxes in thousandths of the image: [x1, y1, x2, y2], often between <|begin_of_box|> and <|end_of_box|> (the model card's part on grounding; arXiv 2507.01006, appendix)."""

    family = "GLM-4.1V"
    model_types = ("glm4v",)
    projector = ("model.visual.merger", "model.visual.downsample")
    vision_tokens = (
        "<|begin_of_image|>",
        "<|image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|video|>",
        "<|end_of_video|>",
    )

    def prepare(self, processor) -> None:
        if not processor.chat_template.startswith(BLOCKS_TO_TEXT):  # a checkpoint of ours has it already
            processor.chat_template = BLOCKS_TO_TEXT + processor.chat_template.removesuffix("\n") + TURN_END

    def times_counted(self, image_processor) -> int:
        return image_processor.temporal_patch_size

    def frame(self, processor, width: int, height: int) -> tuple[int, int]:
        return THOUSANDTHS
