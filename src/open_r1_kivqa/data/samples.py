"""One row of a data file as a `Sample`: what a row may hold, and every reason to refuse one."""

import math
import os
import re
from dataclasses import dataclass, field

from ..errors import InputError

IMAGE_MARKER = "<image>"
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}

# A row that spells one of these would add image tokens without an image, or end its own turn.
RESERVED = re.compile(
    r"<\|(?:image_pad|video_pad|vision_pad|vision_start|vision_end|image|begin_of_image|end_of_image"
    r"|im_start|im_end|endoftext|video|begin_of_video|end_of_video|system|user|assistant|observation)\|>"
    r"|<IMG_CONTEXT>|\[gMASK\]|<sop>"
)
ANSWER_BLOCK = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A checked row.

    Attributes:
        id: unique over all files of a run; an integer id has become a string.
        images: absolute paths, in the order of the markers.
        turns: (role, text) pairs of the prompt, role in system, user, assistant; the last one is a user turn. The
            number of `<image>` markers in the user turns equals the number of images.
        answer: text of the closing assistant turn as written, tags included; "" if there is none.
        answers: accepted answers, or `{"range": [low, high]}` (both ends inclusive).
        answer_type, question_type, split: "" if the row has none.
        entity: key of the article that the question is about.
        evidence: keys of the passages that hold the answer.
        candidates: sets of passage keys, each best first; () if the row has none.
        reward_method: the row's, else the file's, else "default".
        source: "path.jsonl:line".
        row: the row as read.
    """

    id: str
    images: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    answer: str
    answers: tuple[str, ...] | dict
    answer_type: str
    question_type: str
    entity: str | None
    evidence: tuple[str, ...]
    candidates: tuple[tuple[str, ...], ...]
    split: str
    reward_method: str
    source: str
    row: dict = field(repr=False, compare=False)

    @property
    def weak_evidence(self) -> bool:
        """Whether `evidence` is a guess: as far as a converter could see, that passage doesn't hold the answer."""
        return self.row.get("evidence_source") == "weak"

    @property
    def question(self) -> str:
        """Text of the last user turn without its image markers."""
        return self.turns[-1][1].replace(IMAGE_MARKER, "").strip()


def parse_row(row: dict, *, image_folder: str, reward_method: str, source: str) -> Sample:
    """Turn a row into a `Sample`; no file is touched.

    Args:
        row: one parsed line.
        image_folder: folder that the row's images lie under; "" if the file has none.
        reward_method: the file's method, for rows without `accu_reward_method`; "" means "default".
        source: "path.jsonl:line", named by every error.

    Raises:
        InputError: the row cannot be used; says which field, what it holds and what to write.
    """
    if not isinstance(row, dict):
        raise InputError(f"{source}: a row is a JSON object, not {_kind(row)}; write one object per line.")
    images = _images(row, image_folder, source)
    turns, answer = _conversation(row, source)
    turns = _place_images(turns, len(images), source)
    answers = _answers(row, answer, source)
    return Sample(
        id=row_id(row, "id", source),
        images=images,
        turns=turns,
        answer=answer,
        answers=answers,
        answer_type=_text(row, "answer_type", source) or "",
        question_type=_text(row, "question_type", source) or "",
        entity=_text(row, "entity", source),
        evidence=_evidence(row, source),
        candidates=_candidates(row, source),
        split=_text(row, "split", source) or "",
        reward_method=_text(row, "accu_reward_method", source) or reward_method or "default",
        source=source,
        row=row,
    )


def row_id(row: dict, name: str, source: str) -> str:
    """The row's identifying field `name` as a string; `InputError` if it is missing or of another kind."""
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    given = f"is {_kind(value)}" if name in row else "is missing"
    raise InputError(f"{source}: `{name}` {given}; give every row its own string or integer.")


def is_number(value: object) -> bool:
    """Whether it is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond 1e308
        return False


def _images(row: dict, folder: str, source: str) -> tuple[str, ...]:
    value = row.get("image")
    if value is None:
        return ()
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise InputError(f"{source}: `image` is {_kind(value)}; write one path, a list of paths, or leave it out.")
    if names and not folder:
        raise InputError(f"{source}: the row has an image but no image folder was given; set --image_folders.")
    root = os.path.abspath(folder) if names else ""
    return tuple(_inside(root, name, source) for name in names)


def _inside(root: str, name: str, source: str) -> str:
    """Join, refusing what leaves the folder. Lexical on purpose: image folders made of symbolic links are common."""
    path = os.path.normpath(os.path.join(root, name))
    if "\0" in name or not path.startswith(root.rstrip(os.sep) + os.sep):
        raise InputError(
            f"{source}: image {name!r} lies outside its image folder {root}; move it or set --image_folders."
        )
    return path


def _conversation(row: dict, source: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """(prompt turns, answer): the answer is the last turn if that is the assistant's."""
    value = row.get("conversations")
    if not isinstance(value, list) or not value:
        given = f"is {_kind(value)}" if "conversations" in row else "is missing"
        raise InputError(
            f'{source}: `conversations` {given}; write a list like [{{"from": "human", "value": "question"}}, '
            f'{{"from": "gpt", "value": "answer"}}].'
        )
    turns = tuple(_turn(turn, number, source) for number, turn in enumerate(value, 1))
    answer = ""
    if turns[-1][0] == "assistant":
        answer = turns[-1][1]
        turns = turns[:-1]
    if not turns or turns[-1][0] != "user":
        raise InputError(f"{source}: the prompt does not end with a human turn; put one before the last gpt turn.")
    if any(role == "system" for role, _ in turns[1:]):
        raise InputError(f"{source}: a system turn stands after another turn; it can only be the first.")
    return turns, answer


def _turn(turn: object, number: int, source: str) -> tuple[str, str]:
    if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
        raise InputError(f'{source}: turn {number} is not of the form {{"from": "human", "value": "text"}}.')
    speaker, text = turn.get("from"), turn["value"]
    role = ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise InputError(f"{source}: turn {number} is from {speaker!r}; use one of {', '.join(ROLES)}.")
    if not text.strip():
        raise InputError(f"{source}: turn {number} is empty; write its text or leave the turn out.")
    refuse_reserved(text, f"{source}: turn {number}")
    return role, text


def refuse_reserved(text: str, place: str) -> None:
    """InputError, opening with `place`, for a text that spells one of `RESERVED`."""
    reserved = RESERVED.search(text)
    if reserved:
        raise InputError(
            f"{place} spells the model token {reserved.group()}; remove it (images are marked {IMAGE_MARKER})."
        )


def _place_images(turns: tuple[tuple[str, str], ...], images: int, source: str) -> tuple[tuple[str, str], ...]:
    """One marker per image: rows without any marker, as VLM-R1 reads them, get theirs before the first question."""
    markers = sum(text.count(IMAGE_MARKER) for role, text in turns if role == "user")
    if markers == images:
        return turns
    if markers:
        raise InputError(
            f"{source}: {markers} {IMAGE_MARKER} marker(s) in the human turns for {images} image(s); write one marker for "
            f"each image, or none to show all images first."
        )
    first = next(i for i, (role, _) in enumerate(turns) if role == "user")
    return (*turns[:first], ("user", IMAGE_MARKER * images + turns[first][1]), *turns[first + 1 :])


def _answers(row: dict, answer: str, source: str) -> tuple[str, ...] | dict:
    value = row.get("answers")
    if value is None:
        blocks = ANSWER_BLOCK.findall(answer)
        text = (blocks[-1] if blocks else answer).strip()
        return (text,) if text else ()
    if isinstance(value, dict):
        bounds = value.get("range")
        numbers = isinstance(bounds, list) and len(bounds) == 2 and all(is_number(bound) for bound in bounds)
        if not numbers or bounds[0] > bounds[1]:
            raise InputError(f'{source}: `answers` is {value!r}; a range is {{"range": [low, high]}} with low <= high.')
        return {"range": [float(bounds[0]), float(bounds[1])]}
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text.strip() for text in value):
        raise InputError(f'{source}: `answers` is {value!r}; write a list of texts or {{"range": [low, high]}}.')
    return tuple(value)


def _evidence(row: dict, source: str) -> tuple[str, ...]:
    value = row.get("evidence")
    if value is None:
        return ()
    return _keys([value] if isinstance(value, str) else value, "evidence", source)


def _candidates(row: dict, source: str) -> tuple[tuple[str, ...], ...]:
    value = row.get("candidates")
    if value is None or value == []:
        return ()
    if isinstance(value, list) and all(isinstance(keys, list) and keys for keys in value):
        return tuple(_keys(keys, "candidates", source) for keys in value)
    return (_keys(value, "candidates", source),)


def _keys(value: object, name: str, source: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) and key for key in value):
        raise InputError(f'{source}: `{name}` is {_kind(value)}; write passage keys like "article#section" in a list.')
    repeated = next((key for i, key in enumerate(value) if key in value[:i]), None)
    if repeated is not None:
        raise InputError(f"{source}: `{name}` names {repeated!r} twice; name each passage once.")
    return tuple(value)


def _text(row: dict, name: str, source: str) -> str | None:
    value = row.get(name)
    if value is None or isinstance(value, str):
        return value or None
    raise InputError(f"{source}: `{name}` is {_kind(value)}; write a text or leave it out.")


def _kind(value: object) -> str:
    """What a wrong value is, short enough for an error."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
    }
    text = repr(value)
    return "null" if value is None else f"{names[type(value)]} ({text[:60]}{'...' if len(text) > 60 else ''})"
