"""Pages: the same content as HTML and as Markdown, with nothing taken for markup that is not."""

from __future__ import annotations

import html.parser

from pipelines.common import page

PNG = b"\x89PNG not really"


class Reader(html.parser.HTMLParser):
    """Collects the tags that were opened and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data):
        self.texts.append(data.strip())


def blocks():
    return [
        page.Heading("Losses & <b>alphas</b>"),
        page.Text('5 < 6 and "so on"'),
        page.Grid(
            ["loss", "a|b"],
            [[page.Field("<i>x</i>"), page.Field("0.5", note="± 0.1", best=True)]],
        ),
        page.Picture("curve", 'Recall "over" N', PNG),
    ]


def test_nothing_in_a_web_page_is_taken_for_markup():
    read = Reader(page.web_page("A <title>", blocks()))
    assert "i" not in read.tags and read.tags.count("b") == 1
    for text in ("A <title>", "Losses & <b>alphas</b>", '5 < 6 and "so on"', "<i>x</i>", "± 0.1"):
        assert text in read.texts
    assert read.attributes["alt"] == 'Recall "over" N'
    assert read.attributes["class"] == "best"


def test_a_web_page_needs_no_other_file():
    text = page.web_page("Title", blocks())
    assert text.count("src=") == 1 and 'src="data:image/png;base64,' in text
    assert "href=" not in text and "http" not in text


def test_a_page_on_disk(tmp_path):
    page.write_page(tmp_path, "Title", blocks())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curve.png",
        "report.html",
        "report.md",
    ]
    assert (tmp_path / "curve.png").read_bytes() == PNG
    assert (tmp_path / "report.md").read_text(encoding="utf-8").splitlines()[-5:] == [
        "| loss | a\\|b |",
        "| --- | ---: |",
        "| <i>x</i> | **0.5** (± 0.1) |",
        "",
        '![Recall "over" N](curve.png)',
    ]


def test_columns_of_words_are_left_aligned():
    table = page.markdown_table(["a", "b", "c"], [], align="lrl")
    assert table.splitlines() == ["| a | b | c |", "| --- | ---: | --- |"]
