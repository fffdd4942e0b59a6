r"""Answers that choose: the letter of an option (`mcq`), or yes and no (`yes_no`).

Both read one choice out of the answer and compare it with the reference's. Whoever names several choices has made none: "A or B" is wrong, unless the reference names the same
several. Reading is generous about form (`(A)`, `B.`, `**B**`, `\boxed{C}`, "The answer is (D).", "C: Paris", "Paris") and strict about prose: the article in "a dog" and the "I" of
"I think" are no choices.
"""

import re
import string

from open_r1_kivqa.data.samples import Sample
from open_r1_kivqa.rewards.answer import normalise, plain
from open_r1_kivqa.rewards.text import boxed

MAX_READ = 4_000  # an answer of more characters chooses nothing
UNKNOWN_OPTIONS = string.ascii_uppercase[:10]  # letters that can be meant where a row tells no options

COMMAND = re.compile(
    r"\\(?:text|mathrm|mathbf|mathit|textbf|textit|mathsf|operatorname)\s*+(?=\{)|\\[()\[\], ]|[{}$*`\"]"
)
# What follows an "A" that is a choice, not an article.
VERBS = (
    "is|are|and|or|because|since|was|seems|as|best|fits|looks|but|not|vs|versus|xor|aka|maybe|option|choice|answer|the"
)
PROSE = rf"(?=\s+(?!(?i:{VERBS})\b)[^\W\d_]{{2}})"  # a word follows: an "A" before it is an article
ANCHOR = r"(?:the\s+|my\s+)?(?:(?:correct|right|final|best)\s+)*(?:answer|option|choice|letter)"
LIST = re.compile(r"[(\[]?[A-Za-z][)\]]?[.:]?(?:(?:\s*[,;/|&+]\s*|\s+)(?:(?:and|or)\s+)?[(\[]?[A-Za-z][)\]]?[.:]?)*")
TOGETHER = re.compile(r"[A-Z]{2,10}")
LEADING = re.compile(r"[(\[]?(?P<letter>[A-Za-z])(?:[)\]][.:]?|[.:,]|\s+-)\s*(?P<rest>\S.*)", re.DOTALL)
SAID = re.compile(
    rf"{ANCHOR}(?:\s+(?:is|are)(?:\s+(?:option|choice|letter))?\s*:?|\s*[:=])\s*(?P<said>\S.*)",
    re.IGNORECASE | re.DOTALL,
)
LATIN = r"A-Za-z0-9\u00c0-\u024f"  # a word ends where other scripts begin
MENTION = re.compile(
    rf"""
    \b(?i:{ANCHOR})(?:\s+(?:is|are)\b)?\s*[:=]?\s*[(\[]?(?P<named>[A-Za-z])[)\]]?(?![\w'])  # option C, the answer is (d)
    | (?<![\w)\]])[(\[](?P<bracketed>[A-Za-z])[)\]]                                      # (A) [A], not f(x)
    | (?:^|(?<=[\s,;]))(?P<closed>[A-Za-z])\)                                             # A)
    | (?<![{LATIN}.])(?<![{LATIN}]{{2}}-)(?<![a-z]['’])(?<!\w\()(?P<bare>[A-Z])(?![{LATIN}]|\.\w|[+#]|-[a-z]|['’](?:s|t|m|d|ll|re|ve)\b)  # B as a word of its own
    """,
    re.VERBOSE | re.MULTILINE,
)
BETWEEN = re.compile(r"[,;/|:?!()\[\]&+#≥]|\.\s|\s-+\s|[-=]>|\b(?:or|and|vs|versus|xor|aka|maybe|actually|not)\b")
DENIED = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except)|n't)\s+(?:be\s+)?(?:the\s+)?(?:option\s+|choice\s+|answer\s+)?[(\[]?$",
    re.IGNORECASE,
)
MARK = re.compile(
    r"(?:^|(?<=[\s,;:?!]))(?:\((?P<both>[A-Za-z])\)|(?P<one>[A-Za-z])(?P<sign>[).:]))(?=\s|(?<=[):])\S|(?<=^..)\S)",
    re.MULTILINE,
)
WORDS = {"yes": ("yes", "no"), "no": ("yes", "no"), "true": ("true", "false"), "false": ("true", "false")}


def mcq(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer names the same option as a reference, else 0.0. None if no reference names one.

    Options come from the row's `options` (a list of texts, or `{letter: text}`), else from the question, where they are marked "A.", "A)", "A:" or "(A)" from A on. With them, an
    option's full text names it as well; without them, letters up to J count.
    """
    if isinstance(sample.answers, dict):
        return None
    options = options_of(sample)
    references = [reference for reference in (_reference(text, options) for text in sample.answers) if reference]
    if not references:
        return None
    if len(answer) > MAX_READ:
        return 0.0
    return float(choices(answer, options) in references)


def options_of(sample: Sample) -> dict[str, str]:
    """The row's options by upper-case letter; empty if it tells none."""
    given = sample.row.get("options")
    if isinstance(given, dict):
        return {
            str(key).strip().upper(): str(text)
            for key, text in given.items()
            if re.fullmatch(r"\s*[A-Za-z]\s*", str(key))
        }
    if isinstance(given, list):
        texts = [str(text) for text in given[:26]]
        own = _marked("\n".join(text.replace("\n", " ") for text in texts))  # texts that carry their letter
        return own if len(own) == len(texts) else dict(zip(string.ascii_uppercase, texts, strict=False))
    return _marked(sample.question)


def _marked(text: str) -> dict[str, str]:
    """Options that `text` marks with letters from A on, two or more, in one way: the longest such list, the last of equally long ones."""
    text = plain(text).replace("*", "")
    lists: dict[tuple, list[re.Match]] = {}
    best: list[re.Match] = []
    for mark in MARK.finditer(text):
        letter = mark["both"] or mark["one"]
        style = (mark["sign"], letter.isupper())
        if letter in "Aa":
            lists[style] = []
        elif style not in lists or ord(letter.upper()) - ord("A") != len(lists[style]):
            continue
        lists[style].append(mark)
        if len(lists[style]) >= max(2, len(best)):
            best = lists[style]
    ends = [mark.start() for mark in best[1:]] + [len(text)]
    texts = [
        text[mark.end() : end].strip().split("\n")[0].strip().rstrip(",;").strip()
        for mark, end in zip(best, ends, strict=False)
    ]
    if best and "\n" not in text[best[0].start() : best[-1].start()]:  # on one line a sentence may follow the last one
        texts[-1] = re.split(r"[.?!]\s+(?=[A-Z])", texts[-1])[0]
    return dict(zip(string.ascii_uppercase, texts, strict=False))


def _reference(text: str, options: dict[str, str]) -> frozenset[str]:
    """The letters that a reference names; unlike an answer it may explain itself behind the letter, and prose never names any."""
    text = _unwrapped(text)
    lead = None if LIST.fullmatch(text) or _option_texts(text, options) else LEADING.fullmatch(text)
    if lead and lead["letter"].upper() in (options or UNKNOWN_OPTIONS):
        return frozenset(lead["letter"].upper())
    return _whole(text, options) or frozenset()


def choices(text: str, options: dict[str, str]) -> frozenset[str]:
    """The letters of all options that `text` names; empty if it names none, or denies one ("not A")."""
    lines = [] if boxed(text) else plain(text).splitlines()
    text = _unwrapped(text)
    whole = _whole(text, options)
    if whole is not None:
        return whole
    for letter in options:  # "A Paris"
        if text[:1] == letter and text[1:2].isspace() and _same(text[1:], options[letter]):
            return frozenset(letter)
    named = _mentions(text, options or UNKNOWN_OPTIONS)
    lead = LEADING.fullmatch(text)
    if (
        lead
        and (lead["letter"].isupper() or text[0] in "([" or text[1] in ").")
        and lead["letter"].upper() in (options or UNKNOWN_OPTIONS)
    ):
        named |= {lead["letter"].upper()}
    if named:
        for part in dict.fromkeys([*lines, *BETWEEN.split(text)]):
            named |= _option_texts(part, options)
    return named


def _unwrapped(text: str) -> str:
    """The text without LaTeX and Markdown around it; of a text with boxes, the boxes."""
    text = plain(text).replace("_", " ")
    boxes = boxed(text)
    text = ", ".join(boxes) if boxes else text
    text = " ".join(COMMAND.sub(" ", text).split())
    while len(text) > 2 and (text[0], text[-1]) in (("'", "'"), ("<", ">")):
        text = text[1:-1].strip()
    return text


def _whole(text: str, options: dict[str, str]) -> frozenset[str] | None:
    """The letters of a text that is nothing but letters, an option's text, or both, with "The answer is" before it or not; None if it is anything else."""
    letters = options or UNKNOWN_OPTIONS
    said = SAID.fullmatch(text)
    for part in [text] + ([said["said"]] if said else []):
        lead = LEADING.fullmatch(part)
        if lead and options and _same(lead["rest"], options.get(lead["letter"].upper(), "")):
            return frozenset(lead["letter"].upper())
        bare = part.rstrip(".:, ")
        if LIST.fullmatch(bare):
            named = frozenset(letter.upper() for letter in re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", bare))
            if named <= set(letters):
                return named
        named = _option_texts(part, options)
        if named:
            return named
        if TOGETHER.fullmatch(bare) and len(set(bare)) == len(bare) and set(bare) <= set(letters) and options:
            return frozenset(bare)
    return None


def _option_texts(text: str, options: dict[str, str]) -> frozenset[str]:
    """The one option whose text equals `text`; empty if there is none, or several share it."""
    named = [letter for letter in options if _same(text, options[letter])]
    return frozenset(named if len(named) == 1 else ())


def _same(text: str, option: str) -> bool:
    if re.match(r"\W*A\b(?!\s+[^\W\d_])", text) and not re.match(r"\W*a\b", option, re.IGNORECASE):
        return False  # "A: dog" names A, though the article of "a dog" does not count
    form = normalise(option)
    return form != "" and len(text) <= 4 * len(option) + 40 and normalise(text) == form


def _mentions(text: str, letters) -> frozenset[str]:
    """Every letter of `letters` that a sentence names as a choice, and any other letter it calls one; empty if one is denied."""
    named = set()
    for match in MENTION.finditer(text):
        kind, letter = match.lastgroup, match[match.lastgroup]
        before, after = text[max(0, match.start() - 30) : match.start()], text[match.end() :][:40]
        article = re.match(PROSE, after) and not match.group().endswith((")", "]"))
        if kind == "bare" and (letter not in letters or letter == "I" or (letter == "A" and article)):
            continue
        if kind == "named" and article and letter.upper() in "AI" and (letter.islower() or ":" in match.group()):
            continue
        if kind in ("closed", "bracketed") and letter.upper() not in letters:
            continue
        if DENIED.search(before):
            return frozenset()
        named.add(letter.upper())
    return frozenset(named)


def yes_no(answer: str, sample: Sample) -> float | None:
    """1.0 if the answer says yes or no as a reference does, else 0.0, also for one that says both or neither ("I do not know"). None if no reference says one of them.

    "True" and "false" are read where the reference is written so.
    """
    if isinstance(sample.answers, dict):
        return None
    references = []
    for text in sample.answers:
        first = re.match(r"\W*(yes|no|true|false)\b", _unwrapped(text), re.IGNORECASE)
        words = WORDS[first[1].lower()] if first else ("yes", "no")
        said = _verdict(text, words)
        if said:
            references.append((words, said))
    if not references:
        return None
    return float(len(answer) <= MAX_READ and any(_verdict(answer, words) == said for words, said in references))


# "There is no dog" says nothing, "I would say no it isn't" does.
DETERMINER = re.compile(
    r"(?<!\bsay )(?<!answer is )(?<=[^\W\d_] )no\s+(?!(?:or|and|but|because|since|as|vs|versus|yes|no|it|there|they|he|she|the|this|that|i|we|not|aka|xor|maybe|actually)\b)[^\W\d_]"
    r"|\bno\s+(?:idea|clue|opinion|answer|information|way)\b",
    re.IGNORECASE,
)


def _verdict(text: str, words: tuple[str, str]) -> str | None:
    """Which of the two words a text says; None if both, neither, or one that is denied. The "no" of "no dog" counts only as the first word."""
    text = DETERMINER.sub(" ", _unwrapped(text))
    said = set()
    for match in re.finditer(rf"(?<!\w)({words[0]}|{words[1]})(?!\w|-one\b|-body\b)", text, re.IGNORECASE):
        if re.search(r"(?:\bnot|n't)\s+$", text[max(0, match.start() - 12) : match.start()], re.IGNORECASE):
            return None
        said.add(match[1].lower())
    return said.pop() if len(said) == 1 else None
