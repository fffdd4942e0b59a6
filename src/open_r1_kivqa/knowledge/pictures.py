"""Pictures of the articles that passages are of, shown with them."""

import os
from collections.abc import Sequence
from dataclasses import replace

from ..errors import InputError
from .base import KnowledgeBase, Passage


class PassagePictures:
    """Puts an article's first picture before its passage. Can be pickled.

    Args:
        number: `--passage_images`: so many of the passages shown, from the first on, get one; at least 1.
        folders: the image folders of the rows. An article's `images` are paths below the knowledge base's own folder, or else below one of these.
    """

    def __init__(self, number: int, folders: Sequence[str]):
        if number < 1:
            raise InputError(f"--passage_images {number}: at least 1 is wanted, or 0 for none.")
        self.number, self.folders = (
            number,
            tuple(dict.fromkeys(os.path.abspath(folder) for folder in folders if folder)),
        )

    @classmethod
    def of(cls, number: int, folders: Sequence[str]) -> "PassagePictures | None":
        """As the flags say; None for 0."""
        return cls(number, folders) if number else None

    def add(self, passages: Sequence[Passage], kb: KnowledgeBase, number: int | None = None) -> list[Passage]:
        """The passages, the first ones with the picture of their article, if it has one; an article whose picture is there already gets none again.

        Args:
            number: how many get one, in place of `self.number`.

        Raises:
            InputError: an article's picture is not there.
        """
        shown, articles = list(passages), set()
        for i, passage in enumerate(shown[: self.number if number is None else number]):
            article = passage.key.rpartition("#")[0]
            if article not in articles:
                articles.add(article)
                shown[i] = replace(passage, image=self.path(kb, article))
        return shown

    def path(self, kb: KnowledgeBase, article: str) -> str | None:
        """The absolute path of an article's first picture; None if it has none. `InputError` if that is no file below the folders."""
        images = kb.article(article).get("images") or []
        if not isinstance(images, list) or not all(isinstance(name, str) and name for name in images):
            raise InputError(f"{kb.path}: `images` of article {article!r} is no list of paths; correct it.")
        if not images:
            return None
        folders = (os.path.dirname(kb.path), *self.folders)
        path = find_picture(images[0], folders)
        if path is None:
            raise InputError(
                f"The picture {images[0]!r} of article {article!r} does not lie below {', '.join(folders)}; put it there, or leave --passage_images out."
            )
        return path


def find_picture(name: str, folders: Sequence[str]) -> str | None:
    """The file of a picture below the first folder that has it; None if there is none."""
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        # Lexical on purpose, as for the images of rows: folders made of symbolic links are common.
        if path.startswith(folder.rstrip(os.sep) + os.sep) and os.path.isfile(path):
            return path
    return None
