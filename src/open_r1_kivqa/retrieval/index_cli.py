"""`kivqa index`: the pictures of a knowledge base's articles as vectors that can be searched.

Exit code 0 if the index was written or is there already, 2 if something given cannot be used. A run that was stopped goes on where it was when the same command is given again. With torchrun
(`torchrun --nproc_per_node 8 -m open_r1_kivqa.cli index ...`) the ranks share the pictures out.
"""

import argparse
import os
import time
from collections.abc import Callable

from ..errors import NO_ROOM, InputError
from .kinds import EF_SEARCH, KINDS, PRECISIONS, PROBES

DTYPES = ("float32", "float16", "bfloat16")
BATCH_SIZE = 64


def parser() -> argparse.ArgumentParser:
    """The command's flags."""
    flags = argparse.ArgumentParser(prog="kivqa index", description=__doc__.partition("\n")[0], allow_abbrev=False)
    flags.add_argument("--knowledge_base", required=True, help="jsonl file of articles")
    flags.add_argument("--output", required=True, help="folder to write")
    flags.add_argument("--overwrite", action="store_true", help="replace another index in --output")
    pictures = flags.add_argument_group("vectors computed here")
    pictures.add_argument(
        "--image_folders",
        default="",
        help="folders that the articles' `images` lie in, separated by ':', besides the knowledge base's own",
    )
    pictures.add_argument(
        "--encoder",
        help="colour, or folder or hub name of a CLIP, SigLIP or DINO checkpoint; beside imported vectors: what made them",
    )
    pictures.add_argument("--batch_size", type=int, help=f"pictures computed at a time (default: {BATCH_SIZE})")
    pictures.add_argument("--dtype", choices=DTYPES, help="to compute in (default: as saved; on a CPU float32)")
    pictures.add_argument("--device", help="cpu, cuda:0 ... (default: a GPU if there is one)")
    pictures.add_argument(
        "--save_features",
        help="folder for the vectors as well, in vectors.npy and ids.json, as --features and --ids take them",
    )
    imported = flags.add_argument_group("or imported vectors")
    imported.add_argument("--features", help=".npy with a row for each vector; needs --ids")
    imported.add_argument("--echosight", help="EchoSight's kb_index.faiss, or another flat faiss index; needs --ids")
    imported.add_argument(
        "--ids", help="the article of each vector, by key, url or title: .txt, .json, .jsonl, or EchoSight's .pkl"
    )
    imported.add_argument("--redirects", help="titles that lead to others, .tsv or .json, for ids that are old titles")
    index = flags.add_argument_group("the index")
    index.add_argument(
        "--kind",
        choices=KINDS,
        default="flat",
        help="flat: exact; ivf: looks into the nearest lists; hnsw: walks along a graph (default: %(default)s)",
    )
    index.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="fp32",
        help="of the stored vectors; sq8: a byte a number (default: %(default)s)",
    )
    index.add_argument("--nprobe", type=int, help=f"lists that a search looks into (ivf; default: {PROBES})")
    index.add_argument("--ef_search", type=int, help=f"candidates that a search keeps (hnsw; default: {EF_SEARCH})")
    index.add_argument("--seed", type=int, default=0, help="of the sample that trains it (default: %(default)s)")
    return flags


def main(argv: list[str]) -> int:
    """Builds the index, and gives the exit code. Raises InputError for what cannot be used."""
    flags = parser().parse_args(argv)
    _check(flags)

    # Imported here: these take seconds, and --help should not.
    from ..data.launch import once_per_launch
    from .encoders import load_image_encoder

    started = time.perf_counter()

    def say(what: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            print(f"{time.perf_counter() - started:8.1f} s  {what}", flush=True)

    encoder = None
    if flags.encoder is not None:
        encoder = load_image_encoder(flags.encoder, flags.device, flags.batch_size, flags.dtype)
    try:
        if flags.features or flags.echosight:
            once_per_launch("index", lambda: _import(flags, encoder, say))
        else:
            _embed(flags, encoder, say)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        raise InputError(
            f"--output {flags.output} cannot be written further ({error.strerror}); make room and give the same command again."
        ) from error
    return 0


def _check(flags: argparse.Namespace) -> None:
    """InputError for flags that don't fit together, before anything is read."""
    given = [f"--{name}" for name in ("features", "echosight") if getattr(flags, name)]
    if len(given) > 1:
        raise InputError("--features and --echosight both give vectors; give one of them.")
    if not given and not flags.encoder:
        raise InputError(
            "Nothing says where vectors come from; give --encoder (colour, or a checkpoint), --features or --echosight."
        )
    for name in ("ids", "redirects"):
        if getattr(flags, name) and not given:
            raise InputError(
                f"--{name} has no effect without imported vectors; give --features or --echosight, or leave it out."
            )
    if given and not flags.ids:
        raise InputError(f"{given[0]} needs --ids, which says of which article each vector is.")
    if given and flags.save_features:
        raise InputError(
            f"--save_features has no effect with {given[0]}, whose vectors are there already; leave it out."
        )
    for name in ("dtype", "device", "batch_size", "image_folders"):
        if getattr(flags, name) and not flags.encoder:
            raise InputError(f"--{name} has no effect without --encoder; leave it out.")
    for name in ("dtype", "device"):
        if getattr(flags, name) and flags.encoder == "colour":
            raise InputError(f"--{name} has no effect with --encoder colour, which has no model; leave it out.")
    for name, kind in (("nprobe", "ivf"), ("ef_search", "hnsw")):
        value = getattr(flags, name)
        if value is not None and flags.kind != kind:
            raise InputError(f"--{name} has no effect with --kind {flags.kind}; leave it out, or give --kind {kind}.")
        if value is not None and value < 1:
            raise InputError(f"--{name} {value} looks at nothing; give 1 or more.")
    if flags.batch_size is None:
        flags.batch_size = BATCH_SIZE
    if flags.batch_size < 1:
        raise InputError(f"--batch_size {flags.batch_size} computes nothing; give 1 or more.")
    if not 0 <= flags.seed < 2**63:
        raise InputError(f"--seed {flags.seed} is not between 0 and 2**63 - 1; give one that is.")
    for name in ("output", "save_features"):
        path = getattr(flags, name)
        folder = os.path.dirname(os.path.abspath(path)) if path else os.curdir
        if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(f"--{name} {path}: the folder {folder} does not exist or cannot be written to.")
        if path and os.path.exists(path) and not os.path.isdir(path):
            raise InputError(f"--{name} {path} is a file; give a folder.")


def _embed(flags: argparse.Namespace, encoder, say: Callable[[str], None]) -> None:
    """Embeds the pictures and builds the index. Every rank of a launch runs it."""
    from ..data.jsonl import split_paths
    from ..data.launch import once_per_launch
    from ..knowledge.base import KnowledgeBase
    from .building import check_room
    from .features import discard, embed, prepare
    from .pictures import Pictures, find_pictures

    work = f"{flags.output.rstrip(os.sep)}.features"
    locks = []  # of rank 0

    def begin() -> dict:
        kb = KnowledgeBase.open(flags.knowledge_base)
        pictures = find_pictures(kb, split_paths(flags.image_folders))
        say(f"{len(pictures):,} pictures of {len(kb):,} articles found")
        if pictures.unlisted:
            say(f"{pictures.unlisted:,} articles name no picture")
        if pictures.missing:
            say(f"{pictures.missing:,} pictures are missing, for example: {'; '.join(pictures.examples)}")
        identity = {
            "encoder": encoder.fingerprint,
            "dtype": flags.dtype,
            "batch_size": flags.batch_size,
            "pictures": pictures.hash,
        }
        if _is_there(flags, kb, identity, say):
            _refuse_unsaved(flags)
            discard(work, identity)  # left by a run that was killed at its very end
            return {"there": True}
        copies = 2 if flags.save_features else 1
        say(check_room(flags.output, flags.kind, flags.precision, len(pictures), encoder.dim, copies))
        locks.append(prepare(work, identity, flags.overwrite))
        pictures.save(work)
        return {"there": False, "identity": identity}

    begun = once_per_launch("beginning", begin)
    if begun["there"]:
        return
    pictures = Pictures.open(work)
    features = embed(pictures, encoder, work, say)

    def finish() -> dict:
        if features.broken:
            say(f"{features.broken:,} pictures cannot be read, for example: {features.examples[0]}")
        counts = {
            "articles_without_picture": pictures.unlisted,
            "pictures_missing": pictures.missing,
            "pictures_broken": features.broken,
        }
        if flags.save_features:
            features.save(flags.save_features)
            say(f"vectors written to {flags.save_features}")
        kb = KnowledgeBase.open(flags.knowledge_base)
        _build(flags, kb, features, features.keys, encoder, begun["identity"], counts, say)
        locks[0].remove_folder()
        return {}

    once_per_launch("end", finish)


def _refuse_unsaved(flags: argparse.Namespace) -> None:
    """InputError if the index is there, but not the vectors that were to be saved with it."""
    if flags.save_features and not os.path.isfile(os.path.join(flags.save_features, "vectors.npy")):
        raise InputError(
            f"{flags.output} is there already, and its vectors are gone; give --overwrite to embed the pictures again for --save_features, or leave it out."
        )


def _import(flags: argparse.Namespace, encoder, say: Callable[[str], None]) -> dict:
    """Builds the index from vectors that others computed."""
    from ..data.cache import content_hash
    from ..data.jsonl import split_paths
    from ..knowledge.base import KnowledgeBase
    from ..knowledge.titles import Titles, read_redirects
    from .building import check_room
    from .imports import check_encoder, match, read_echosight, read_features, read_ids
    from .pictures import picture_folders

    source = flags.features or flags.echosight
    kb = KnowledgeBase.open(flags.knowledge_base)
    folders = picture_folders(kb, split_paths(flags.image_folders))
    array = read_features(source) if flags.features else read_echosight(source)
    names = read_ids(flags.ids)
    say(f"{len(array):,} vectors of {array.shape[1]} numbers read, {len(names):,} ids")
    paths = [path for path in (source, flags.ids, flags.redirects) if path]
    identity = {
        "encoder": None if encoder is None else encoder.fingerprint,
        "files": [[os.path.basename(path), content_hash(path)] for path in paths],
    }
    if _is_there(flags, kb, identity, say):
        return {}
    titles = Titles.open(kb, read_redirects(flags.redirects) if flags.redirects else None)
    imported = match(array, names, titles, f"{source} and {flags.ids}", say)
    if imported.unmatched:
        share = imported.unmatched / len(array)
        say(
            f"{imported.unmatched:,} vectors ({share:.1%}) are of no article of {kb.path}, for example: {'; '.join(imported.examples)}"
        )
    if imported.zero:
        say(f"{imported.zero:,} vectors are zero or not finite and left out")
    if encoder is not None:
        compared = check_encoder(encoder, imported, kb, folders, source)
        say(
            f"{compared} pictures embedded by {encoder.name} have the imported vectors"
            if compared
            else f"no picture is there to see whether {encoder.name} made the vectors; taken on trust"
        )
    say(check_room(flags.output, flags.kind, flags.precision, len(imported.vectors), imported.vectors.dim))
    counts = {"vectors_unmatched": imported.unmatched, "vectors_zero": imported.zero}
    _build(flags, kb, imported.vectors, imported.keys, encoder, identity, counts, say)
    return {}


def _build(flags: argparse.Namespace, kb, vectors, keys, encoder, identity: dict, counts: dict, say) -> None:
    from .building import build_index, gib

    about = {
        "encoder": "" if encoder is None else encoder.name,
        "encoder_fingerprint": "" if encoder is None else encoder.fingerprint,
        "knowledge_base": kb.path,
        "knowledge_base_fingerprint": kb.fingerprint,
        "knowledge_base_articles": len(kb),
        **counts,
        "built_from": identity,
    }
    settings = {"nprobe": flags.nprobe, "ef_search": flags.ef_search}
    manifest = build_index(
        flags.output,
        vectors,
        keys,
        kind=flags.kind,
        precision=flags.precision,
        seed=flags.seed,
        about=about,
        progress=say,
        **settings,
    )
    size = sum(entry.stat().st_size for entry in os.scandir(flags.output))
    say(
        f"{flags.output} written: {manifest['vectors']:,} vectors of {manifest['articles']:,} articles, {len(kb) - manifest['articles']:,} articles have none; "
        f"{flags.kind}, {flags.precision}, {gib(size)}"
    )


def _is_there(flags: argparse.Namespace, kb, identity: dict, say) -> bool:
    """Whether --output holds this very index; what a search looks at is changed in its manifest if that alone differs. InputError if it holds something else and may not be replaced."""
    from .building import search_settings, write_manifest
    from .index import read_manifest

    if not os.path.exists(flags.output) or (os.path.isdir(flags.output) and not os.listdir(flags.output)):
        return False
    if not os.path.isfile(os.path.join(flags.output, "manifest.json")):
        raise InputError(f"--output {flags.output} is there and holds no index; give another one.")
    if flags.overwrite:
        return False
    found = read_manifest(flags.output)
    wanted = {
        "knowledge_base_fingerprint": kb.fingerprint,
        "kind": flags.kind,
        "precision": flags.precision,
        "seed": flags.seed,
        **{f"built_from.{name}": value for name, value in identity.items()},
    }
    flat = {**found, **{f"built_from.{name}": value for name, value in found.get("built_from", {}).items()}}
    differs = [name for name, value in wanted.items() if flat.get(name) != value]
    if differs:
        raise InputError(
            f"--output {flags.output} holds another index (it differs in {', '.join(differs)}); give --overwrite to replace it, or another --output."
        )
    settings = search_settings(flags.kind, found.get("lists"), nprobe=flags.nprobe, ef_search=flags.ef_search)
    if any(found[name] != value for name, value in settings.items()):
        write_manifest(flags.output, {**found, **settings})
        say(f"{flags.output} is there already; a search now takes {settings}")
    else:
        say(f"{flags.output} is there already, built from the same; --overwrite builds it again")
    return True
