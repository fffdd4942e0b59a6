"""Rows for the tests of evaluation."""

from open_r1_kivqa.data.samples import Sample, parse_row


def sample(
    id: str, *, images: tuple[str, ...] = (), question: str = "What is it?", answer: str = "yes", **fields
) -> Sample:
    """A row with these images (absolute paths) and fields."""
    row = {"id": id, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
    row |= {"image": [image.lstrip("/") for image in images]} if images else {}
    return parse_row(row | fields, image_folder="/", reward_method="default", source=f"rows.jsonl:{id}")
