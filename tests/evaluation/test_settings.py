import pytest
from evaluation_rows import sample

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.settings import SETTINGS, apply_setting, parse_settings, pictures_of


def test_parse_settings():
    assert parse_settings("normal, wrong_image,normal") == ["normal", "wrong_image"]
    with pytest.raises(InputError, match="blurred is no setting; give some of normal, no_image"):
        parse_settings("normal,blurred")
    with pytest.raises(InputError, match="nothing is no setting"):
        parse_settings(" ,")


def test_wrong_image_shows_another_entity_of_the_same_split():
    rows = [sample(f"{e}{i}", images=(f"/{e}{i}.png",), entity=e, split="s") for e in "abc" for i in range(4)]
    rows.append(sample("elsewhere", images=("/other split.png",), entity="d", split="t"))
    pictures = pictures_of(rows)
    chosen = {row.id: apply_setting("wrong_image", row, pictures).images for row in rows[:-1]}
    for row in rows[:-1]:
        (image,) = chosen[row.id]
        assert image[1] in set("abc") - {row.entity}
    assert len(set(chosen.values())) > 3  # not one picture for all
    assert chosen == {row.id: apply_setting("wrong_image", row, pictures_of(rows[::-1])).images for row in rows[:-1]}


def test_wrong_image_replaces_all_images_and_leaves_the_rest():
    rows = [sample("1", images=("/a.png", "/b.png"), entity="x"), sample("2", images=("/c.png",), entity="y")]
    changed = apply_setting("wrong_image", rows[0], pictures_of(rows))
    assert changed.images == ("/c.png", "/c.png")
    assert (changed.id, changed.turns, changed.answers) == (rows[0].id, rows[0].turns, rows[0].answers)


def test_rows_without_entity_get_a_picture_that_is_not_theirs():
    rows = [sample("1", images=("/a.png",)), sample("2", images=("/b.png",))]
    assert apply_setting("wrong_image", rows[0], pictures_of(rows)).images == ("/b.png",)


def test_wrong_image_says_when_there_is_none():
    rows = [sample("1", images=("/a.png",), entity="x"), sample("2", images=("/b.png",), entity="x")]
    with pytest.raises(InputError, match="picture of another entity for row 1"):
        apply_setting("wrong_image", rows[0], pictures_of(rows))


def test_other_settings_and_rows_without_images_keep_their_images():
    row = sample("1", images=("/a.png",), entity="x")
    for setting in SETTINGS.keys() - {"wrong_image"}:
        assert apply_setting(setting, row, {}) == row
    text_only = sample("2")
    assert apply_setting("wrong_image", text_only, {}) == text_only
