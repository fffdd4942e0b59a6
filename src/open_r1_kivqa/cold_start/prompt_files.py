"""The prompts of the steps, and the rules of rewording: text files that people can replace (`--prompts`).

A file of the folder given stands in for the package's own of the same name; the others stay.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from ..data.samples import refuse_reserved
from ..errors import InputError

PROMPTS = Path(__file__).parent / "prompts"

# file: (placeholders it needs, placeholders it may have)
PLACEHOLDERS = {
    "pseudo_cot": ({"question"}, {"passages"}),
    "description": ({"question", "pseudo_cot"}, {"passages"}),
    "reasoning": ({"question", "description", "passages"}, set()),
    "passages": ({"passages"}, set()),
    "passage": ({"text"}, {"number", "title", "section"}),
}
REPLACEMENTS = "replacements"
ARROW = " => "


@dataclass(frozen=True)
class Replacement:
    """One rule of rewording."""

    pattern: re.Pattern
    text: str


@dataclass(frozen=True)
class Prompts:
    """The texts by the names of PLACEHOLDERS, and the rules of rewording in their order."""

    texts: dict[str, str]
    replacements: tuple[Replacement, ...]


def load_prompts(folder: str | None) -> Prompts:
    """The package's prompts, with those of `folder` in place of the ones that it has.

    Raises:
        InputError: no such folder, it holds none of the files or another text file, a placeholder is missing, unknown or doubled, or a rule of rewording is none.
    """
    paths = {name: PROMPTS / f"{name}.txt" for name in (*PLACEHOLDERS, REPLACEMENTS)}
    if folder is not None:
        paths |= _own(Path(folder), paths)
    texts = {name: _read(paths[name]).strip("\n") for name in PLACEHOLDERS}
    for name, text in texts.items():
        _check_placeholders(text, name, paths[name])
        refuse_reserved(text, f"Prompt {paths[name]}")
    return Prompts(texts, read_replacements(_read(paths[REPLACEMENTS]), str(paths[REPLACEMENTS])))


def _own(folder: Path, known: dict[str, Path]) -> dict[str, Path]:
    names = ", ".join(f"{name}.txt" for name in known)
    if not folder.is_dir():
        raise InputError(f"--prompts {folder} is no folder; give one that holds some of {names}.")
    found = sorted(folder.glob("*.txt"))
    unknown = [path.name for path in found if path.stem not in known]
    if unknown or not found:
        problem = f"holds {unknown[0]}, which is no prompt" if unknown else "holds no prompt"
        raise InputError(f"--prompts {folder} {problem}; the files are {names}.")
    return {path.stem: path for path in found}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Prompt {path}: byte {error.start + 1} is not UTF-8; convert it with iconv -t UTF-8."
        ) from None
    except OSError as error:
        raise InputError(f"Prompt {path} cannot be read ({error.strerror}).") from None


def _check_placeholders(text: str, name: str, path: Path) -> None:
    needed, may = PLACEHOLDERS[name]
    listed = ", ".join(f"{{{one}}}" for one in sorted(needed | may))
    try:
        parts = [part for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        raise InputError(
            f"Prompt {path} has a stray brace ({error}); write {{{{ and }}}} for braces that are no placeholder."
        ) from None
    found = [
        field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        for _, field, spec, conversion in parts
    ]
    for field in found:
        if field not in needed | may:
            raise InputError(
                f"Prompt {path} has the unknown placeholder {{{field}}}; it can use {listed}, and other braces are doubled."
            )
        if found.count(field) > 1:
            raise InputError(f"Prompt {path} has {{{field}}} twice; name each placeholder once.")
    missing = sorted(needed - set(found))
    if missing:
        raise InputError(f"Prompt {path} lacks {{{missing[0]}}}; without it the model would not see that part.")


def read_replacements(text: str, source: str) -> tuple[Replacement, ...]:
    """Rules `regular expression => text`, one a line; blank lines and lines that begin with # are skipped.

    Raises:
        InputError: names the line that is no rule.
    """
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        pattern, arrow, replacement = f"{line.strip()} ".partition(ARROW)
        if not arrow or not pattern.strip():
            raise InputError(f"{source}:{number} is no rule; write: regular expression{ARROW}text.")
        try:
            compiled = re.compile(pattern.strip(), re.IGNORECASE)
            if compiled.match("") is not None:
                raise InputError(f"{source}:{number} matches where there is no text; make the expression longer.")
            re.sub(f"{pattern.strip()}|", replacement.strip(), "", flags=re.IGNORECASE)  # its groups exist
        except (re.error, IndexError) as error:
            raise InputError(f"{source}:{number} is no regular expression and text: {error}.") from None
        rules.append(Replacement(compiled, replacement.strip()))
    return tuple(rules)


def reword(text: str, rules: tuple[Replacement, ...]) -> str:
    """The text with every rule applied, in order; what begins with a capital begins with one afterwards."""

    def put(match: re.Match, rule: Replacement) -> str:
        new = match.expand(rule.text)
        return new[:1].upper() + new[1:] if match.group()[:1].isupper() else new

    for rule in rules:
        text = rule.pattern.sub(lambda match, rule=rule: put(match, rule), text)
    return text
