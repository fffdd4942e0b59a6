"""ViQuAE's questions (`train.jsonl`, `validation.jsonl`, `test.jsonl`), read line by line: KILT's form with `id`, `input` (the question) and `output`."""

from collections.abc import Iterator

from ..data.lines import JsonLines
from ..data.samples import row_id
from ..errors import InputError


def read_references(path: str) -> Iterator[dict]:
    """The questions in the order of the file, each as its line has it, with `id` as a text and one field more, `answers`: all accepted answers.

    Answers stand in `output` as {"answer": ["alias", …], "original_answer": "…"}, or as KILT's list of {"answer": "alias"}. The original answer counts where there is no alias.

    Raises:
        InputError: no such file, another format, or a line without an id, a question or an answer.
    """
    lines = JsonLines(path)
    for i in range(len(lines)):
        source, row = lines.source(i), lines.record(i)
        if not isinstance(row, dict) or not {"id", "input", "output"} <= row.keys():
            given = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise InputError(
                f"{source}: this line has {given or 'nothing'}; wanted is a line of ViQuAE's files, with id, input and output."
            )
        if not isinstance(row["input"], str) or not row["input"].strip():
            raise InputError(f"{source}: `input` is {str(row['input'])[:60]!r}; wanted is the question as a text.")
        row["id"] = row_id(row, "id", source)
        row["answers"] = answers_of(row["output"], source)
        yield row


def answers_of(output: object, source: str) -> list[str]:
    """All accepted answers of a question's `output`, each once. Raises InputError if there is none, or `output` has another form."""
    parts = output if isinstance(output, list) else [output]
    found: list[str] = []
    for part in parts:
        answer = part.get("answer") if isinstance(part, dict) else None
        found += answer if isinstance(answer, list) else [answer]
    found = list(dict.fromkeys(text for text in found if text is not None and text != ""))
    if not found and isinstance(output, dict) and output.get("original_answer"):
        found = [output["original_answer"]]
    if not found or not all(isinstance(text, str) for text in found):
        raise InputError(
            f'{source}: `output` is {str(output)[:80]!r}; wanted is {{"answer": ["alias", …]}}, or a list of {{"answer": "alias"}}.'
        )
    return found
