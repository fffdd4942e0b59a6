"""A published knowledge base of Wikipedia articles as ours, one article a line (docs/data.md): Encyclopedic-VQA's, EchoSight's, ReflectiVA's, InfoSeek's Wiki6M.

Read and written article by article: memory doesn't grow with the file, but for 8 bytes an article (hashes of the keys, to notice one that comes twice) and what is read of --redirects.
"""

import argparse
import os
import re
from itertools import islice
from urllib.parse import unquote

from ..data.image_files import ImageFiles
from ..data.jsonl import split_paths
from ..errors import InputError
from ..knowledge.titles import read_redirects, title_of
from .converted import Counts, RowsFile, file_identity
from .field_map import add_map_flag, described
from .json_stream import is_object, items
from .kb_forms import COMMON, FIELDS, FORMS, Forms
from .seen import SeenKeys

THUMBNAIL = re.compile(r"^\d+px-")
LOOKED_AT = 100  # items in which a known form is looked for before anything is written


def add_flags(flags: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    flags.add_argument("--input", required=True, help="JSON or jsonl file, encyclopedic_kb_wiki.json for example")
    flags.add_argument(
        "--form",
        choices=("auto", *FORMS),
        default="auto",
        help="how its articles are written; auto: each as its keys say. "
        + "; ".join(f"{name}: {', '.join(keys.values())}" for name, keys in FORMS.items())
        + "; all: key or the key in an object, title, url, image_urls. Default: %(default)s",
    )
    add_map_flag(flags, {ours: COMMON.get(ours, ours) for ours in FIELDS})
    flags.add_argument(
        "--section_length",
        type=int,
        default=1500,
        help="characters of a section at most, where an article is one text without sections: it is cut at headings, lines and sentences (default: %(default)s)",
    )
    flags.add_argument(
        "--redirects",
        help="tsv or JSON file of titles and where they lead; they become aliases of the articles that they lead to",
    )
    flags.add_argument(
        "--image_roots",
        help="folders of the articles' pictures, separated by ':'; a picture is found by its url's file name, or is called as the article's key (Q42.jpg)",
    )


def convert(flags: argparse.Namespace) -> list[str]:
    """Writes flags.output. Gives lines for the terminal.

    Raises:
        InputError: a file or flag that can't be used, or no article is left.
    """
    if flags.section_length < 1:
        raise InputError(f"--section_length {flags.section_length}: a section needs a character; give 1 or more.")
    forms = Forms(flags.form, flags.map, flags.section_length)
    _check(flags.input, forms)
    names = _names_of(flags.redirects) if flags.redirects else {}
    pictures = ImageFiles.scan(split_paths(flags.image_roots)) if flags.image_roots else None
    identity = {
        "benchmark": "kb",
        "flags": {name: getattr(flags, name) for name in ("form", "map", "section_length")},
        "images": pictures and [pictures.folder, pictures.fingerprint],
        "inputs": [file_identity(path) for path in (flags.input, flags.redirects) if path],
    }
    keyed, seen = is_object(flags.input), SeenKeys()
    with RowsFile(flags.output, identity) as rows:
        done = rows.done
        for number, item in enumerate(items(flags.input)):
            if number < done:  # dealt with by an interrupted run; which keys it met must be known all the same
                seen.add(forms.key(item, keyed))
                continue
            if not seen.add(forms.key(item, keyed)):
                rows.counts.drop("key given before", item.place)
            elif article := forms.article(item, keyed, rows.counts):
                if pictures is not None:
                    _add_pictures(article, pictures, rows.counts)
                _add_aliases(article, names)
                rows.write(article)
            rows.dealt()
        lines = rows.finish()
    if pictures is not None:
        lines.append(f"  `images` are relative to {pictures.folder}: give it as --image_folders.")
    return lines


def _check(path: str, forms: Forms) -> None:
    """InputError unless one of the first items has a known form."""
    first = None
    for item in islice(items(path), LOOKED_AT):
        first = first or item
        value = item.value
        parts = value.get("sections") if isinstance(value, dict) and "key" in value else None
        if isinstance(parts, list) and parts and isinstance(parts[0], dict) and {"id", "text"} <= parts[0].keys():
            raise InputError(f"{path} is a knowledge base as it should be already; give it as --knowledge_base.")
        if forms.fitting(value):
            return
    if first is None:
        raise InputError(f"{path} holds no article; give the file with its content.")
    raise InputError(
        f"{path} is of no known form. {first.place} is {described(first.value)}. Wanted are articles with keys of one form: {forms.wanted()}. Say where a field stands with --map field=key, --map text=their_key for example."
    )


def _names_of(redirects: str) -> dict[str, list[str]]:
    """The titles that lead to each title, through others too."""
    leads_to = read_redirects(redirects)
    names: dict[str, list[str]] = {}
    for name in leads_to:
        end, met = name, {name}
        while (following := leads_to.get(end)) and following not in met:
            met.add(following)
            end = following
        if end != name:
            names.setdefault(end, []).append(name)
    return names


def _add_aliases(article: dict, names: dict[str, list[str]]) -> None:
    forms = dict.fromkeys(title_of(article[name]) for name in ("title", "url", "key"))
    aliases = [name for form in forms for name in names.get(form, ())]
    if aliases:
        article["aliases"] = list(dict.fromkeys([*article.get("aliases", ()), *aliases]))


def _add_pictures(article: dict, pictures: ImageFiles, counts: Counts) -> None:
    """`images`: those of the file that are on disk, then what its urls and its key are called there."""
    keys = [key for key in (article["key"], *article.get("aliases", ())[:1]) if "/" not in key]
    names = [[name] for name in article["images"]] + [_file_names(url) for url in article.get("image_urls", ())]
    names += [[key] for key in keys]
    found = [next(filter(None, map(pictures.find, forms)), None) for forms in names]
    article["images"] = list(dict.fromkeys(path for path in found if path))
    if not article["images"]:
        counts.note("no picture on disk", article["key"])


def _file_names(url: str) -> list[str]:
    """What a url's file may be called: as in the url, decoded or as it is written there; as the picture that it is a thumbnail of ("320px-…"); by another extension (an svg is downloaded as png)."""
    written = url.partition("?")[0].rpartition("/")[2]
    names = []
    for name in (unquote(written), written):
        whole = THUMBNAIL.sub("", name)
        names += [name, whole, os.path.splitext(whole)[0]]
    return list(dict.fromkeys(filter(None, names)))
