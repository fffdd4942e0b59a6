"""How well sections of articles fit a question: T of s = λV + (1−λ)T (Wiki-R1)."""

import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from .encoders import TextEncoder

WORD = re.compile(r"\w+")
KEPT_TEXTS = 20_000  # whose words are remembered: rows of the same article ask for the same sections again and again
KEPT_WORDS = 1_000_000  # whose stems are remembered
KEPT_BYTES = 2**29  # of embeddings that are remembered


class SectionScorer(Protocol):
    """Scores sections for a question.

    Attributes:
        name: what reports call it.
        fingerprint: changes with all that the scores depend on.
    """

    name: str
    fingerprint: str

    def scores(self, question: str, texts: Sequence[str], owners: Sequence[int] | None = None) -> np.ndarray:
        """(texts,) float64 in [0, 1], higher is better; (0,) for no texts. A text's score may depend on the others, the pool.

        Args:
            owners: the article of each text, those of one article together; None: all are of one.
        """
        ...


def load_section_scorer(name_or_path: str, device: str | None = None) -> SectionScorer:
    """The scorer "bm25", or a text encoder: a folder, or a name on the hub.

    Args:
        device: of an encoder; None takes a GPU if there is one.

    Raises:
        InputError: neither, or an encoder that cannot be loaded.
    """
    if name_or_path == "bm25":
        return Bm25Scorer()
    from .encoders import load_text_encoder

    return EncoderScorer(load_text_encoder(name_or_path, device))


def section_text(title: str, text: str) -> str:
    """What scorers read of a section: its title and its text."""
    return f"{title}\n{text}" if title else text


class Bm25Scorer:
    """BM25 (Lucene's form, k1 = 1.5, b = 0.75) over the pool: how rare a word is, and how long a text is, is judged among the given texts alone.

    Words are runs of letters and digits in lower case, without English stop words, stemmed (Porter's second stemmer). The pool's best text gets 1 and the others their share of its
    score; a text without a word of the question gets 0, and all do if none has one.
    """

    name = "bm25"

    def __init__(self):
        # Imported here: --help should not wait for them.
        import bm25s
        import Stemmer
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        self._bm25s, self._stemmer, self._stop_words = bm25s, Stemmer.Stemmer("english"), frozenset(STOPWORDS_EN_PLUS)
        self.fingerprint = f"bm25-1 bm25s-{bm25s.__version__} pystemmer-{Stemmer.version()}"
        self._stems: dict[str, str] = {}
        self._words: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def scores(self, question: str, texts: Sequence[str], owners: Sequence[int] | None = None) -> np.ndarray:
        """As `SectionScorer.scores`; `owners` plays no part. A word that the question repeats counts once."""
        places = {word: place for place, word in enumerate(dict.fromkeys(self._words_of(question)))}
        # Other words matter only by their number: all are the same one here, which makes the index small.
        other = len(places)
        pool = [[places.get(word, other) for word in self._words_of(text)] for text in texts]
        if not any(place < other for words in pool for place in words):
            return np.zeros(len(texts))
        index = self._bm25s.BM25(method="lucene", k1=1.5, b=0.75, dtype="float64", auto_compile=False)
        index.index((pool, {place: place for place in range(other + 1)}), create_empty_token=False, show_progress=False)
        scores = index.get_scores_from_ids(list(range(other)))
        return scores / scores.max()

    def _words_of(self, text: str) -> tuple[str, ...]:
        words = self._words.get(text)
        if words is None:
            words = self._words[text] = self._read(text)
            if len(self._words) > KEPT_TEXTS:
                self._words.popitem(last=False)
        else:
            self._words.move_to_end(text)
        return words

    def _read(self, text: str) -> tuple[str, ...]:
        words = [word for word in WORD.findall(text.lower()) if word not in self._stop_words]
        new = list({word for word in words if word not in self._stems})
        if len(self._stems) + len(new) > KEPT_WORDS:
            self._stems.clear()
            new = list(set(words))
        self._stems.update(zip(new, self._stemmer.stemWords(new), strict=True))
        return tuple(self._stems[word] for word in words)


class EncoderScorer:
    """Cosine of a text encoder's vectors of question and section, 0 where it is negative.

    A section longer than the encoder reads is cut into pieces, and its best piece counts. The sections of an article are always embedded together, so that scores do not depend on what was
    asked before, and remembered (up to 512 MiB of vectors; the articles unused for longest are forgotten).
    """

    def __init__(self, encoder: "TextEncoder"):
        self._encoder, self.name = encoder, encoder.name
        self.fingerprint = f"encoder-1 {encoder.fingerprint}"
        self._vectors: OrderedDict[tuple[str, ...], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._bytes = 0

    def scores(self, question: str, texts: Sequence[str], owners: Sequence[int] | None = None) -> np.ndarray:
        """As `SectionScorer.scores`."""
        if not len(texts):
            return np.zeros(0)
        asked = self._encoder.encode([question], role="query")[0]
        owners = np.zeros(len(texts)) if owners is None else owners
        scores = []
        for _, group in groupby(zip(owners, texts, strict=True), key=lambda pair: pair[0]):
            vectors, starts = self._embed(tuple(text for _, text in group))
            scores.append(np.maximum.reduceat(vectors @ asked, starts))
        return np.clip(np.concatenate(scores).astype(np.float64), 0, 1)

    def _embed(self, texts: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(pieces, dim) float32 of an article's sections, and (sections,) where each one's pieces start."""
        found = self._vectors.get(texts)
        if found is not None:
            self._vectors.move_to_end(texts)
            return found
        pieces = [self._encoder.pieces(text, role="document") for text in texts]
        starts = np.cumsum([0, *map(len, pieces)])[:-1]
        vectors = self._encoder.encode([piece for own in pieces for piece in own], role="document")
        self._vectors[texts] = vectors, starts
        self._bytes += vectors.nbytes
        while self._bytes > KEPT_BYTES and len(self._vectors) > 1:
            _, (forgotten, _) = self._vectors.popitem(last=False)
            self._bytes -= forgotten.nbytes
        return vectors, starts
