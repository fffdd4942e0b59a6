"""The embedded Factbook in the shapes of published files: Encyclopedic-VQA's knowledge base, InfoSeek's Wiki6M and questions, Wiki-R1's merged training set."""

import json
import shutil
from pathlib import Path
from urllib.parse import quote

DATA = Path(__file__).parents[2] / "src" / "open_r1_kivqa" / "demo" / "data"
WIKI = "https://en.wikipedia.org/wiki/"
TIMES = ("independence_date", "national_holiday")


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def countries() -> list[dict]:
    """Articles of the Factbook."""
    return lines_of(DATA / "knowledge.jsonl")


def url_of(article) -> str:
    return WIKI + quote(article["title"].replace(" ", "_"))


def encyclopedic(article) -> dict:
    """An article's value in `encyclopedic_kb_wiki.json`."""
    return {
        "title": article["title"],
        "section_titles": [part["title"] for part in article["sections"]],
        "section_texts": [part["text"] for part in article["sections"]],
        "image_urls": [f"https://upload.wikimedia.org/wikipedia/commons/a/ab/{article['key']}.svg"],
        "image_reference_descriptions": ["flag"],
        "image_section_indices": [0],
        "url": url_of(article),
    }


def encyclopedic_kb(path, articles=None) -> str:
    values = {url_of(article): encyclopedic(article) for article in articles or countries()}
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def wiki6m_line(article) -> dict:
    """An article's line in `Wiki6M_ver_1_0.jsonl`: one text with headings."""
    texts = [f"== {part['title']} ==\n{part['text']}\n" for part in article["sections"]]
    return {
        "wikidata_id": f"Q{article['key']}",
        "wikipedia_title": article["title"],
        "wikipedia_summary": f"{article['title']} is a country.",
        "wikipedia_content": f"{article['title']} is a country.\n" + "".join(texts),
        "wikipedia_image_url": None,
    }


def oven_images(folder, rows) -> list[str]:
    """Copies of the rows' flags, laid out and named like OVEN's images; gives their ids."""
    ids = [f"oven_04{number:06}" for number in range(len(rows))]
    for id, row in zip(ids, rows, strict=True):
        place = folder / "04" / f"{id}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DATA / "images" / row["image"], place)
    return ids


def infoseek(folder, rows) -> dict[str, str]:
    """Files of InfoSeek with these rows of the Factbook: --flag: path."""
    titles = {article["key"]: article["title"] for article in countries()}
    ids = oven_images(folder / "oven", rows)
    questions, entities, types = [], [], []
    for number, (row, image) in enumerate(zip(rows, ids, strict=True)):
        id = f"infoseek_val_{number:08}"
        kind = "String"
        answer_eval = row["answers"]
        if row["answer_type"] == "numeric" and row["answers"][0].replace(".", "", 1).isdecimal():
            kind, value = "Numerical", float(row["answers"][0])
            answer_eval = [{"wikidata": value, "range": [0.9 * value, 1.1 * value]}]
        elif row["question_type"] in TIMES:
            kind = "Time"
        question = row["conversations"][0]["value"].replace("<image>\n", "")
        line = {"data_id": id, "image_id": image, "question": question, "answer": row["answers"][:1]}
        questions.append({**line, "answer_eval": answer_eval, "data_split": f"val_{row['split']}"})
        title = titles[row["entity"]]
        entities.append({"data_id": id, "entity_id": f"Q{row['entity']}", "entity_text": title})
        types.append({"data_id": id, "question_type": kind})
    return {
        "--input": write_lines(folder / "infoseek_val.jsonl", questions),
        "--withkb": write_lines(folder / "infoseek_val_withkb.jsonl", entities),
        "--question_types": write_lines(folder / "infoseek_val_qtype.jsonl", types),
        "--image_roots": str(folder / "oven"),
    }


def flags_of(values: dict[str, str]) -> list[str]:
    return [part for pair in values.items() for part in pair]


def related_kb(path) -> str:
    """Articles by url, half of them in Encyclopedic-VQA's form and half in Wiki6M's, under the name of Wiki-R1's file."""
    values = {
        url_of(article): encyclopedic(article) if number % 2 else wiki6m_line(article)
        for number, article in enumerate(countries())
    }
    path.write_text(json.dumps(values), encoding="utf-8")
    return str(path)


def write_downloads(folder, rows) -> None:
    """The files that docs/benchmarks_kivqa.md names, below a folder; of the first questions one has no image, one an entity of another name, and one an answer that no section holds; of Wiki-R1's the last is Encyclopedic-VQA's."""
    encyclopedic_kb(folder / "encyclopedic_kb_wiki.json")
    write_lines(folder / "Wiki6M_ver_1_0.jsonl", map(wiki6m_line, countries()))
    related_kb(folder / "final_related_KB_reflectiVA_v2.json")
    infoseek(folder, rows)
    (folder / "data").mkdir(exist_ok=True)
    (folder / "oven").rename(folder / "data" / "oven")
    (folder / "data" / "oven" / "04" / "oven_04000000.JPEG").unlink()
    entities, questions = (folder / f"infoseek_{name}.jsonl" for name in ("val_withkb", "val"))
    lines = lines_of(entities)
    lines[1]["entity_text"] = "Atlantis"
    write_lines(entities, lines)
    lines = lines_of(questions)
    texts = [number for number, line in enumerate(lines) if number > 1 and isinstance(line["answer_eval"][0], str)]
    lines[texts[0]]["answer_eval"] = ["none of them"]
    write_lines(questions, lines)
    merged = [
        {
            "question": row["conversations"][0]["value"].replace("<image>\n", ""),
            "answer": row["answers"],
            "image_id": f"oven_04{number:06}",
            "entity": url_of(article),
            "candidates": [url_of(article), url_of(countries()[0])],
        }
        for number, row in enumerate(rows)
        for article in countries()
        if article["key"] == row["entity"]
    ]
    merged[-1] |= {"image_id": "7000", "answer": "|".join(merged[-1]["answer"])}
    picture = folder / "data" / "inat" / "train" / "1_species" / "7000.jpg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / "images" / rows[-1]["image"], picture)
    name = "merge_infoseek_train_filtered_balance_sample20k_top5_and_evqa_train_sample20k_top5_w_I2T.json"
    (folder / name).write_text(json.dumps(merged), encoding="utf-8")
    (folder / "oven_id2path.json").write_text(json.dumps({"oven_04000000": "04/oven_04000001.JPEG"}))
