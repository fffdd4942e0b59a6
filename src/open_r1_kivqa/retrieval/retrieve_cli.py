"""`kivqa retrieve`: for every row the passages that its picture and its question find, written as `candidates`, and how often the right one is among them.

Exit code 0 if the rows were written, 2 if something given cannot be used. A run that was stopped goes on where it was when the same command is given again. With torchrun
(`torchrun --nproc_per_node 8 -m open_r1_kivqa.cli retrieve ...`) the ranks share the rows out.
"""

import argparse
import os
import time

from ..errors import InputError

WEIGHT = 0.985  # λ of Wiki-R1 for Encyclopedic-VQA
BATCH = 64
DTYPES = ("float32", "float16", "bfloat16")
OF_INDEX = (
    "kind",
    "precision",
    "nprobe",
    "ef_search",
    "vectors",
    "articles",
    "articles_without_picture",
)  # what the report repeats of its manifest
SOURCES = ("index", "topk_json")


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    flags = argparse.ArgumentParser(prog="kivqa retrieve", description=__doc__.partition("\n")[0], allow_abbrev=False)
    flags.add_argument("--data_file_paths", required=True, help="jsonl files of rows, separated by ':'")
    flags.add_argument("--image_folders", default="", help="folder that the images of all rows lie under")
    flags.add_argument("--knowledge_base", required=True, help="jsonl file of articles")
    flags.add_argument(
        "--output", required=True, help="jsonl file to write: the rows in their order, with new `candidates`"
    )
    articles = flags.add_argument_group("where articles come from, one of these")
    articles.add_argument("--index", help="folder that kivqa index wrote")
    articles.add_argument(
        "--topk_json", help="json or jsonl file of what another system retrieved: articles or passages"
    )
    index = flags.add_argument_group("with --index")
    index.add_argument(
        "--encoder", help="of the rows' images, a name or folder (default: the one that the index names)"
    )
    index.add_argument("--batch_size", type=int, help=f"images encoded at a time (default: {BATCH})")
    index.add_argument("--dtype", choices=DTYPES, help="to encode images in (default: as saved; on a CPU float32)")
    index.add_argument(
        "--query_features", help=".npy file (n, dim) with a vector for each image or row, in place of an encoder"
    )
    index.add_argument(
        "--query_ids",
        help="what the vectors belong to, in their order: .json list, or .txt with one a line; ids of rows or names of images",
    )
    topk = flags.add_argument_group("with --topk_json")
    topk.add_argument(
        "--map",
        help="names of its fields where they are others: id=NAME,retrieved=NAME,scores=NAME,name=NAME,score=NAME",
    )
    topk.add_argument("--redirects", help=".tsv or .json file of titles and the titles that they lead to")
    ranking = flags.add_argument_group("which passages become candidates")
    ranking.add_argument(
        "--section_scorer",
        default="bm25",
        help="how sections are scored for the question: bm25, or a text encoder's folder (default: %(default)s)",
    )
    ranking.add_argument(
        "--device", help="for encoders of images and texts, such as cpu or cuda:0 (default: a GPU if there is one)"
    )
    ranking.add_argument(
        "--visual_weight",
        type=float,
        default=WEIGHT,
        help="λ in λV + (1-λ)T, V of the article's picture, T of the section (default: %(default)s, Wiki-R1's for Encyclopedic-VQA; 0.997 for InfoSeek)",
    )
    ranking.add_argument("--other_weights", default="", help="further λs whose recall is printed too, separated by ','")
    ranking.add_argument(
        "--articles", type=int, default=20, help="articles looked at for a question (default: %(default)s)"
    )
    ranking.add_argument(
        "--sections_per_article", type=int, default=1, help="most passages of one article (default: %(default)s)"
    )
    ranking.add_argument("--top_k", type=int, default=20, help="most candidates of a row (default: %(default)s)")
    return flags


def main(argv: list[str]) -> int:
    """Retrieves, writes the rows and their report, prints recall, and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    settings = _check(flags)

    # Imported here: these take seconds, and --help should not.
    from ..data.jsonl import Rows, split_paths
    from ..data.report import ProgressLine
    from ..knowledge.base import KnowledgeBase
    from .blocks import Blocks
    from .candidates import Retriever, Tally
    from .pictures import picture_folders
    from .sections import load_section_scorer

    started = time.perf_counter()
    paths, folders = split_paths(flags.data_file_paths), split_paths(flags.image_folders)
    unread = flags.topk_json is not None or flags.query_features is not None
    rows = Rows.open(paths, folders or ([os.sep] if unread else []), None)  # any image path lies in it
    kb = KnowledgeBase.open(flags.knowledge_base)
    source, about, longest = _source(flags, kb)
    scorer = load_section_scorer(flags.section_scorer, flags.device)
    made_by = {
        "visual_weight": settings.weight,
        "articles": settings.articles,
        "sections_per_article": settings.sections_per_article,
        "top_k": settings.top_k,
        "section_scorer": {"name": scorer.name, "fingerprint": scorer.fingerprint},
        **about,
        "knowledge_base": {"name": os.path.basename(kb.path), "fingerprint": kb.fingerprint, "articles": len(kb)},
        "rows": {"names": [os.path.basename(path) for path in paths], "fingerprint": rows.fingerprint},
    }
    folders = picture_folders(kb, folders)
    retriever = Retriever(kb, source, scorer, settings, folders)
    computed = {"batch_size": flags.batch_size, "dtype": flags.dtype}
    identity = {**made_by, **computed, "other_weights": settings.other_weights, "images": folders}
    blocks = Blocks(flags.output, identity, len(rows))
    progress, todo = ProgressLine(), blocks.todo()
    _refuse_unusable(rows, [i for block in todo for i in blocks.rows_of(block)], images_read=not unread)
    for number, block in enumerate(todo):
        progress("block", number, len(todo))
        answers = list(retriever.answer([rows[i] for i in blocks.rows_of(block)]))
        blocks.write(block, [row for row, _ in answers], [record for _, record in answers])
    blocks.wait()
    if os.environ.get("RANK", "0") != "0":
        return 0
    tally = Tally(settings, min(settings.top_k, longest), min(settings.articles, longest))
    tally.add(blocks.records())
    if not tally.with_candidates:
        raise InputError(
            "\n".join(
                [
                    f"--output {flags.output} is not written, since not one row would have candidates; give lists or vectors of these rows, whose first id is {rows[0].id!r}, or rows with images.",
                    *tally.reasons(),
                ]
            )
        )
    blocks.merge({**tally.to_json(), "made_by": made_by})
    print("\n".join(tally.lines()))
    print(f"\n{flags.output} written, and {flags.output}.report.json; {time.perf_counter() - started:.1f} s")
    return 0


def _refuse_unusable(rows, places: list[int], images_read: bool) -> None:
    """InputError for a row that cannot be used or an image that is not there, before any is encoded."""
    missing = []
    for i in places:
        sample = rows[i]
        missing += [path for path in sample.images if images_read and not os.path.isfile(path)]
    if missing:
        raise InputError(
            f"{len(missing):,} images of the rows do not exist, the first is {missing[0]}; check --image_folders, or remove their rows (kivqa check lists them)."
        )


def _source(flags: argparse.Namespace, kb):
    """(where articles come from, what the report says of it, most articles or passages that it gives)."""
    from ..data.cache import content_hash
    from . import sources

    if flags.topk_json:
        from ..knowledge.titles import Titles, read_redirects
        from .topk import TopK, read_mapping

        redirects = read_redirects(flags.redirects) if flags.redirects else None
        mapping = read_mapping(flags.map)
        topk = TopK.read(flags.topk_json, kb, Titles.open(kb, redirects), mapping)
        if os.environ.get("RANK", "0") == "0":
            print("\n".join(topk.lines()))
        about = {
            "name": os.path.basename(flags.topk_json),
            "fingerprint": content_hash(flags.topk_json),
            "map": mapping,
        }
        about["redirects"] = content_hash(flags.redirects) if flags.redirects else None
        return sources.ListSource(topk, flags.articles), {"topk_json": {**about, **topk.to_json()}}, topk.longest
    from .index import ImageIndex

    index = ImageIndex.open(flags.index)
    index.refuse_other(knowledge_base=kb)
    about = {name: index.manifest[name] for name in OF_INDEX if name in index.manifest}
    about = {"index": {**about, "fingerprint": content_hash(os.path.join(flags.index, "index.faiss"))}}
    if flags.query_features:
        import numpy as np

        from .imports import read_features
        from .vectors import usable

        ids, vectors = sources.read_query_ids(flags.query_ids), read_features(flags.query_features, "--query_features")
        if len(ids) != len(vectors):
            raise InputError(
                f"--query_features {flags.query_features} holds {len(vectors):,} vectors, --query_ids {flags.query_ids} {len(ids):,} ids; give one id for each vector."
            )
        name, fingerprint = os.path.basename(flags.query_features), content_hash(flags.query_features)
        if vectors.shape[1] != index.dim:
            raise InputError(
                f"--query_features {flags.query_features} holds vectors of {vectors.shape[1]} numbers, the index {flags.index} of {index.dim}; give vectors of the encoder that it was built with."
            )
        bad = np.flatnonzero(~usable(vectors)).tolist()
        about["query_features"] = {"name": name, "fingerprint": fingerprint, "ids": content_hash(flags.query_ids)}
        about["query_features"]["zero"] = len(bad)
        if bad and os.environ.get("RANK", "0") == "0":
            print(
                f"{len(bad):,} query vectors are zero or not finite, and count as if they were not there; the first is that of {ids[bad[0]]!r}."
            )
        vectors = sources.imported(ids, vectors, without=bad)
        return sources.IndexSource(index, vectors, flags.articles, sources.NO_VECTOR), about, len(kb)
    from .encoders import load_image_encoder

    name = flags.encoder or index.encoder
    if not name:
        raise InputError(
            f"--index {flags.index} holds imported vectors, and of which encoder is not known; give --query_features of the same encoder."
        )
    encoder = load_image_encoder(name, flags.device, flags.batch_size or BATCH, flags.dtype)
    index.refuse_other(encoder_fingerprint=encoder.fingerprint)
    about["encoder"] = {"name": encoder.name, "fingerprint": encoder.fingerprint}
    return sources.IndexSource(index, sources.encoded(encoder), flags.articles, sources.NO_IMAGE), about, len(kb)


def _check(flags: argparse.Namespace):
    """The settings; InputError for flags that don't fit together, before anything is read."""
    from ..data.jsonl import split_paths
    from .candidates import Settings

    given = [name for name in SOURCES if getattr(flags, name) is not None]
    if len(given) != 1:
        raise InputError(
            f"{'Both' if given else 'Neither'} of --index and --topk_json {'are' if given else 'is'} given; give one of them."
        )
    own = {
        "index": ("encoder", "batch_size", "dtype", "query_features", "query_ids"),
        "topk_json": ("map", "redirects"),
    }
    for name in own[SOURCES[1 - SOURCES.index(given[0])]]:
        if getattr(flags, name) is not None:
            raise InputError(f"--{name} has no effect with --{given[0]}; leave one of them out.")
    if (flags.query_features is None) != (flags.query_ids is None):
        raise InputError("--query_features and --query_ids belong together; give both or none.")
    for name in ("encoder", "batch_size", "dtype"):
        if flags.query_features is not None and getattr(flags, name) is not None:
            raise InputError(f"--query_features takes the place of an encoder; leave --{name} out.")
    for name in ("articles", "sections_per_article", "top_k", "batch_size"):
        if getattr(flags, name) is not None and getattr(flags, name) < 1:
            raise InputError(f"--{name} {getattr(flags, name)} is too small; give 1 or more.")
    weights = [_weight("--other_weights", text) for text in flags.other_weights.split(",") if text.strip()]
    paths = split_paths(flags.data_file_paths)
    if len(split_paths(flags.image_folders)) > 1:
        raise InputError(
            "--image_folders names several folders, but the rows go into one file, whose images lie under one: run the command for each data file by itself, with its folder and an --output of its own, or give the folder that all paths of `image` are relative to."
        )
    if os.path.isdir(flags.output) or not os.path.isdir(os.path.dirname(os.path.abspath(flags.output))):
        raise InputError(
            f"--output {flags.output} is a folder, or its folder does not exist; name a file in one that does."
        )
    if os.path.exists(flags.output) and not os.path.isfile(flags.output):  # a device, which the file would replace
        raise InputError(f"--output {flags.output} is no file; name one, which is written anew.")
    for path in (*paths, flags.knowledge_base, flags.topk_json):
        if path and os.path.exists(path) and os.path.exists(flags.output) and os.path.samefile(path, flags.output):
            raise InputError(f"--output {flags.output} would overwrite an input; name another file.")
    weight = _weight("--visual_weight", flags.visual_weight)
    return Settings(weight, flags.articles, flags.sections_per_article, flags.top_k, tuple(weights))


def _weight(flag: str, text: str | float) -> float:
    try:
        weight = float(text)
    except ValueError:
        raise InputError(f"{flag}: {text!r} is no number; give one from 0 to 1.") from None
    if not 0 <= weight <= 1:
        raise InputError(f"{flag} {weight:g} is not between 0 and 1; give one that is.")
    return weight
