"""`kivqa graph`: who resembles whom among the training rows, written to one file for --curriculum_graph.

Exit code 0 if it was written, 2 if something given cannot be used. Images are not looked at.
"""

import argparse
import os
import time

from ..errors import InputError

ENT_WEIGHT, PROP_TOPK = 0.5, 100  # Wiki-R1's
QUESTIONS = ("tfidf", "none")


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    flags = argparse.ArgumentParser(prog="kivqa graph", description=__doc__.partition("\n")[0], allow_abbrev=False)
    flags.add_argument("--data_file_paths", required=True, help="jsonl files of training rows, separated by ':'")
    flags.add_argument("--output", required=True, help="file to write, .npz")
    articles = flags.add_argument_group("how articles are compared, one of these (none given: only questions are)")
    articles.add_argument(
        "--knowledge_base", help="jsonl file of articles, for --similarity tfidf and --sentence_model"
    )
    articles.add_argument(
        "--similarity",
        help="tfidf: words of the articles (default with --knowledge_base); none; or a file: .json {entity: {entity: similarity}}, .tsv or .jsonl with a pair of entities, or "
        "of row ids, and its similarity a line",
    )
    articles.add_argument(
        "--sentence_model",
        help="folder of a text encoder, or its name on the hub; sentence-transformers' folders are some",
    )
    articles.add_argument("--entity_embeddings", help=".npz with the arrays ids (keys of articles) and vectors")
    articles.add_argument("--image_embeddings", help="likewise; ids are keys of articles or ids of rows")
    both = flags.add_argument_group("the rest")
    both.add_argument(
        "--questions", choices=QUESTIONS, default="tfidf", help="how questions are compared (default: %(default)s)"
    )
    both.add_argument(
        "--ent_weight",
        type=float,
        help=f"weight of the articles' similarity, that of the questions' is 1 minus it (default: {ENT_WEIGHT})",
    )
    both.add_argument(
        "--prop_topk", type=int, default=PROP_TOPK, help="most neighbours of a row (default: %(default)s)"
    )
    both.add_argument(
        "--seed",
        type=int,
        default=0,
        help="decides which of equally similar rows become neighbours (default: %(default)s)",
    )
    return flags


def main(argv: list[str]) -> int:
    """Builds and writes the graph, and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    source = _article_source(flags)
    _check(flags, source)

    # Imported here: these take seconds, and --help should not.
    import resource

    import numpy as np

    from ..data.cache import content_hash
    from ..data.jsonl import Rows, split_paths
    from ..retrieval.encoders import load_text_encoder
    from . import similarity
    from .graph import SampleGraph
    from .neighbours import measure_recall, nearest_rows

    started = time.perf_counter()

    def say(what: str) -> None:
        print(f"{time.perf_counter() - started:8.1f} s  {what}", flush=True)

    encoder = load_text_encoder(flags.sentence_model) if source == "sentence_model" else None
    paths = split_paths(flags.data_file_paths)
    rows = Rows.open(paths, [os.sep], None)  # any image path lies in it
    ids, hashes = rows.ids, rows.hashes
    things = similarity.look(rows)
    say(f"{len(rows):,} rows read: {things.sets.shape[0]:,} sets of articles, {len(things.questions):,} questions")
    entity = _entity_side(flags, source, things, ids, encoder)
    if entity is not None:
        say("articles prepared")
    text = similarity.question_side(things) if flags.questions == "tfidf" else None
    weight = 1.0 if entity is None or text is None else ENT_WEIGHT if flags.ent_weight is None else flags.ent_weight
    first, second = (text, None) if entity is None else (entity, text)
    top_k = min(flags.prop_topk, max(1, len(rows) - 1))
    neighbours = nearest_rows(first, second, weight, top_k, flags.seed, say)
    recall = measure_recall(first, second, weight, top_k, *neighbours[:2], flags.seed)
    say("recall measured")
    files = [(name, getattr(flags, name)) for name in ("knowledge_base", "entity_embeddings", "image_embeddings")]
    files += [("similarity", flags.similarity)] if source == "similarity" and flags.similarity != "tfidf" else []
    recipe = {
        "articles": flags.sentence_model if source == "sentence_model" else "tfidf" if source == "tfidf" else source,
        "sentence_model": None if encoder is None else encoder.fingerprint,
        "questions": flags.questions,
        "ent_weight": weight if second is not None else None,
        "prop_topk": flags.prop_topk,
        "seed": flags.seed,
        "rows": len(rows),
        "recall": recall,
        "data": [{"name": os.path.basename(path), "sha256": content_hash(path)} for path in paths],
        "files": {name: {"name": os.path.basename(path), "sha256": content_hash(path)} for name, path in files if path},
        "versions": _versions(),
    }
    graph = SampleGraph.from_neighbours(ids, hashes, *neighbours, recipe)
    graph.save(flags.output)
    say(f"{flags.output} written")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{len(rows):,} rows, {len(graph.indices):,} edges; {graph.isolated:,} rows without neighbours; neighbours a row: {np.median(np.diff(graph.indptr)):.0f} (median); "
        f"recall {recall:.3f}; {time.perf_counter() - started:.1f} s, peak memory {peak:.2f} GiB"
    )
    return 0


def _article_source(flags: argparse.Namespace) -> str | None:
    """What articles are compared by: "tfidf", "similarity" (a file), a flag's name, or None."""
    given = [
        name
        for name in ("similarity", "sentence_model", "entity_embeddings", "image_embeddings")
        if getattr(flags, name) is not None
    ]
    if len(given) > 1:
        raise InputError(f"--{given[0]} and --{given[1]} both say how articles are compared; give one of them.")
    if not given:
        return "tfidf" if flags.knowledge_base else None
    if given == ["similarity"]:
        return {"tfidf": "tfidf", "none": None}.get(flags.similarity, "similarity")
    return given[0]


def _check(flags: argparse.Namespace, source: str | None) -> None:
    """InputError for flags that don't fit together, before anything is read."""
    if source is None and flags.questions == "none":
        raise InputError(
            "Neither articles nor questions are compared; give --knowledge_base, another source for articles, or --questions tfidf."
        )
    needs_base = source in ("tfidf", "sentence_model")
    if needs_base and not flags.knowledge_base:
        name = "--similarity tfidf" if source == "tfidf" else "--sentence_model"
        raise InputError(f"{name} compares the texts of articles; give their file with --knowledge_base.")
    if flags.knowledge_base and not needs_base:
        raise InputError(
            f"--knowledge_base has no effect with {'--similarity none' if source is None else '--' + source}; leave one of them out."
        )
    if flags.ent_weight is not None:
        if source is None or flags.questions == "none":
            raise InputError(
                "--ent_weight has no effect when only articles or only questions are compared; leave it out."
            )
        if not 0 < flags.ent_weight < 1:
            raise InputError(
                f"--ent_weight {flags.ent_weight} is not between 0 and 1; to compare by one alone use --questions none or --similarity none."
            )
    if flags.prop_topk < 1:
        raise InputError(f"--prop_topk {flags.prop_topk} keeps no neighbour; give 1 or more.")
    if not 0 <= flags.seed < 2**63:
        raise InputError(f"--seed {flags.seed} is not between 0 and 2**63 - 1; give one that is.")
    for name in ("knowledge_base", "entity_embeddings", "image_embeddings", "similarity"):
        path = getattr(flags, name)
        if path is not None and path not in ("tfidf", "none") and not os.path.isfile(path):
            words = ", tfidf or none" if name == "similarity" else ""
            raise InputError(f"--{name} {path} does not exist; give the path of a file{words}.")
    folder = os.path.dirname(os.path.abspath(flags.output))
    if not flags.output.endswith(".npz") or os.path.isdir(flags.output):
        raise InputError(f"--output {flags.output} is no name of a file that ends with .npz; give one.")
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--output {flags.output}: the folder {folder} does not exist or cannot be written to.")
    try:  # some folders say that they can be written to and cannot
        open(f"{flags.output}.part", "wb").close()
        os.remove(f"{flags.output}.part")
    except OSError as error:
        raise InputError(f"--output {flags.output} cannot be written ({error.strerror}); give another one.") from None


def _entity_side(flags: argparse.Namespace, source: str | None, things, row_ids: list[str], encoder):
    """The side of the articles; None if they are not compared."""
    from ..knowledge.base import KnowledgeBase
    from . import similarity
    from .similarity_files import read_embeddings, read_similarities

    if source is None:
        return None
    if source == "similarity":
        complete = flags.similarity.endswith(".json")
        edges = read_similarities(flags.similarity)
        return similarity.given_side(things, row_ids, edges, flags.similarity, complete)
    if not things.articles and source != "image_embeddings":
        raise InputError(
            "None of the rows names an article (`entity` or `evidence`), so articles cannot be compared; add them, or give --similarity none."
        )
    if source in ("entity_embeddings", "image_embeddings"):
        path = getattr(flags, source)
        own = row_ids if source == "image_embeddings" else []
        return similarity.embedded_side(things, own, *read_embeddings(path), path)
    texts = similarity.article_texts(KnowledgeBase.open(flags.knowledge_base), things.articles)
    if source == "sentence_model":
        return similarity.article_side(things, similarity.sentence_vectors(texts, encoder))
    return similarity.article_side(things, similarity.tfidf(texts, "articles", similarity.ARTICLE_TERMS))


def _versions() -> dict[str, str]:
    from importlib import metadata

    packages = ("open-r1-kivqa", "numpy", "scipy", "scikit-learn", "numba", "faiss-cpu", "transformers")
    return {name: metadata.version(name) for name in packages}
