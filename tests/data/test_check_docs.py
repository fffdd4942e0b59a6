"""docs/check.md names every kind of problem that the code reports."""

import re
from pathlib import Path

from open_r1_kivqa.data.sources import FILE_KINDS, ROW_KINDS
from open_r1_kivqa.data.verdicts import REFUSALS

ROOT = Path(__file__).parents[2]


def test_every_kind_is_on_the_page():
    table = (ROOT / "docs" / "check.md").read_text(encoding="utf-8").partition("## Kinds of problems")[2]
    named = {kind for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for kind in re.findall(r"`(\w+)`", row)}
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/open_r1_kivqa/data").glob("*.py"))
    reported = set(re.findall(r'(?:\.add\(|Problem\(|return|kind=)\s*"([a-z_]+)",', code))
    reported |= {*FILE_KINDS.values(), *ROW_KINDS.values(), *REFUSALS.values(), "other"}
    assert named == reported
