"""By what rows resemble each other: their articles and their questions, each distinct one compared once.

A side is one of the two. Its units are the distinct things that rows have on it: sets of articles, or questions. Rows of the same unit have similarity 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize

from ..data.jsonl import Rows
from ..errors import InputError
from ..knowledge.base import KnowledgeBase
from ..retrieval.encoders import TextEncoder

VOCABULARY = 2**18  # most frequent words that TF-IDF knows
ARTICLE_TERMS = 256  # heaviest words that an article is compared by; the rest of a long article costs time and carries next to nothing


@dataclass(frozen=True, eq=False)
class Side:
    """One side of N rows: U units and how to compare them.

    Attributes:
        units: (N,) int64, unit of each row; -1: the row has none and is like no other on this side.
        matrix: (U, D) float32 rows of length 1 (or 0), sparse or dense, whose inner products, cut at 0, are the similarities; or, with `given`, (U, U) sparse similarities in
            (0, 1] without a diagonal. A unit's similarity to itself is 1.
        given: whether `matrix` holds similarities.
    """

    units: np.ndarray
    matrix: csr_array | np.ndarray
    given: bool = False


@dataclass(frozen=True, eq=False)
class Things:
    """What N rows are about.

    Attributes:
        articles: A distinct article keys, in order of first appearance.
        sets: (U, A) sparse, 1 where an article belongs to a set.
        set_of: (N,) int64, the row's set of articles; -1 without.
        questions: distinct questions, in order of first appearance.
        question_of: (N,) int64.
    """

    articles: list[str]
    sets: csr_array
    set_of: np.ndarray
    questions: list[str]
    question_of: np.ndarray


def look(rows: Rows) -> Things:
    """Reads every row once. A row's articles are its `entity` and those of its `evidence` keys, each once, in any order."""
    articles: dict[str, int] = {}
    sets: dict[tuple[int, ...], int] = {}
    questions: dict[str, int] = {}
    set_of, question_of = np.full(len(rows), -1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    for i in range(len(rows)):
        sample = rows[i]
        keys = [] if sample.entity is None else [sample.entity]
        keys += [key.rpartition("#")[0] for key in sample.evidence]
        own = tuple(sorted({articles.setdefault(key, len(articles)) for key in keys}))
        if own:
            set_of[i] = sets.setdefault(own, len(sets))
        question_of[i] = questions.setdefault(sample.question, len(questions))
    members = np.array([article for own in sets for article in own], dtype=np.int32)
    indptr = np.cumsum([0, *(len(own) for own in sets)])
    matrix = csr_array((np.ones(len(members), np.float32), members, indptr), shape=(len(sets), len(articles)))
    return Things(list(articles), matrix, set_of, list(questions), question_of)


def question_side(things: Things) -> Side:
    """Questions by TF-IDF."""
    return Side(things.question_of, tfidf(things.questions, "questions"))


def article_side(things: Things, vectors: csr_array | np.ndarray) -> Side:
    """Sets of articles by vectors (A, D) of the articles: a set's is the sum of its articles' unit vectors, scaled to length 1."""
    return Side(things.set_of, normalize(things.sets @ normalize(vectors)))


def article_texts(kb: KnowledgeBase, articles: Sequence[str]) -> list[str]:
    """Title and section texts of each article, one text each; `InputError` if the knowledge base lacks one."""
    return [_article_text(kb.article(key)) for key in articles]


def _article_text(article: dict) -> str:
    sections = article.get("sections")
    sections = sections if isinstance(sections, list) else []
    parts = [article.get("title"), *(part.get("text") for part in sections if isinstance(part, dict))]
    return "\n".join(part for part in parts if isinstance(part, str))


def tfidf(texts: Sequence[str], what: str, terms: int | None = None) -> csr_array:
    """(texts, words) float32 TF-IDF of whole words in lower case, 1 + log of their counts, rows of length 1.

    Args:
        what: name of the texts, for the error.
        terms: keep only each text's heaviest words; None keeps all.

    Raises:
        InputError: no text holds a word.
    """
    # One-letter words count: they tell apart the questions of some data, and whole words of some languages.
    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\w+", sublinear_tf=True, max_features=VOCABULARY, dtype=np.float32)
    analyze = vectorizer.build_analyzer()
    if not any(analyze(text) for text in texts):
        raise InputError(f"None of the {len(texts):,} {what} holds a word, so they cannot be compared by TF-IDF.")
    matrix = csr_array(vectorizer.fit_transform(texts))
    if terms is not None:
        matrix = heaviest(matrix, terms)
    matrix.sort_indices()
    return normalize(matrix)


def heaviest(matrix: csr_array, terms: int) -> csr_array:
    """The largest `terms` entries of each row, of equal ones the first."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    order = np.lexsort((matrix.indices, -matrix.data, rows))
    keep = np.sort(order[np.arange(len(rows)) - matrix.indptr[rows] < terms])
    indptr = np.searchsorted(rows[keep], np.arange(matrix.shape[0] + 1))
    return csr_array((matrix.data[keep], matrix.indices[keep], indptr), shape=matrix.shape)


def sentence_vectors(texts: Sequence[str], encoder: TextEncoder) -> np.ndarray:
    """(texts, D) float32 embeddings; a text longer than the encoder reads is cut into pieces and gets the mean of their vectors."""
    pieces = [encoder.pieces(text) for text in texts]
    numbers = np.array([len(own) for own in pieces])
    vectors = encoder.encode([piece for own in pieces for piece in own])
    return np.add.reduceat(vectors, np.cumsum(numbers) - numbers) / numbers[:, None].astype(np.float32)


def embedded_side(things: Things, row_ids: list[str], ids: list[str], vectors: np.ndarray, path: str) -> Side:
    """Rows by embeddings of their articles or, if the embeddings' ids are those of rows, by embeddings of their own.

    Args:
        row_ids: ids of the N rows; [] if only embeddings of articles are wanted.
        ids, vectors: of `read_embeddings`; embeddings of other things are ignored.

    Raises:
        InputError: articles (or rows) without an embedding.
    """
    places = {id: place for place, id in enumerate(ids)}
    of_rows = any(id in places for id in row_ids[:1]) and any(key not in places for key in things.articles)
    wanted = row_ids if of_rows else things.articles
    what = "rows" if of_rows else "articles of the rows"
    chosen = _find_all(wanted, places, f"{path} has no embedding", what)
    if of_rows:
        return Side(np.arange(len(row_ids)), normalize(vectors[chosen]))
    return article_side(things, vectors[chosen])


def given_side(
    things: Things, row_ids: list[str], edges: tuple[list[str], list[str], np.ndarray], path: str, complete: bool
) -> Side:
    """Rows by similarities of their articles or of themselves that a file gives.

    What a file says of (a, b) counts for (b, a) too unless it says otherwise there. The similarity of two sets of articles is that of the sums of their articles' vectors,
    which follows from the articles' similarities.

    Args:
        edges: of `similarity_files.read_similarities`, and whether such a file names every entity (`complete`), so that others may stand in it, or only pairs.

    Raises:
        InputError: names that the rows don't have, or, in a complete file, articles that it lacks.
    """
    left, right, values = edges
    articles = {key: place for place, key in enumerate(things.articles)}
    names, what = articles, "article of the rows"
    if complete:
        known = {*left, *right}
        _find_all(things.articles, dict.fromkeys(known, 0), f"{path} has no similarities", "articles of the rows")
    elif left and left[0] not in articles:
        names, what = {id: place for place, id in enumerate(row_ids)}, "row"
        if left[0] not in names:
            raise InputError(
                f"{path} names {left[0]!r}, which is neither an article (entity) nor the id of a row; give similarities of these rows or of their articles."
            )
    a = np.fromiter((names.get(name, -1) for name in left), dtype=np.int64, count=len(left))
    b = np.fromiter((names.get(name, -1) for name in right), dtype=np.int64, count=len(right))
    unknown = (a < 0) | (b < 0)
    if unknown.any() and not complete:
        first = int(np.argmax(unknown))
        name = left[first] if a[first] < 0 else right[first]
        raise InputError(
            f"{path} names {name!r}, which is no {what} ({unknown.sum():,} such pairs); leave them out or give the rows they belong to."
        )
    keep = ~unknown & (a != b) & (values > 0)
    size = len(names)
    pairs = csr_array((values[keep].astype(np.float32), (a[keep], b[keep])), shape=(size, size))
    pairs = pairs + _without(csr_array(pairs.T), pairs)
    if names is articles:
        return Side(things.set_of, _between_sets(things.sets, pairs), given=True)
    return Side(np.arange(size), pairs, given=True)


def _without(matrix: csr_array, other: csr_array) -> csr_array:
    """The entries of `matrix` at whose places `other` has none."""
    there = other.astype(bool).astype(np.float32)
    result = csr_array(matrix - matrix * there)
    result.eliminate_zeros()
    return result


def _between_sets(sets: csr_array, pairs: csr_array) -> csr_array:
    """Similarities (U, U) of sets of articles from those of articles, cut at 1, without the diagonal."""
    products = csr_array(sets @ (pairs + eye_array(pairs.shape[0], dtype=np.float32, format="csr")) @ sets.T)
    scale = diags_array(1 / np.sqrt(products.diagonal()))
    result = csr_array(scale @ products @ scale).astype(np.float32)
    result.setdiag(0)
    result.eliminate_zeros()
    result.data = np.minimum(result.data, 1)
    result.sort_indices()
    return result


def _find_all(wanted: list[str], places: dict[str, int], lacks: str, what: str) -> np.ndarray:
    """Place of each name; `InputError` that counts the missing ones."""
    missing = [name for name in wanted if name not in places]
    if missing:
        raise InputError(
            f"{lacks} for {len(missing):,} of {len(wanted):,} {what} (first: {missing[0]!r}); add them, or leave these rows out of the data."
        )
    return np.fromiter((places[name] for name in wanted), dtype=np.int64, count=len(wanted))
