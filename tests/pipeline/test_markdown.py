"""pipeline/markdown.py: a table's text, and a document of which only one part is written."""

import pytest

from harness.errors import ProjectError
from pipeline.markdown import GeneratedPart, markdown_table

PART = GeneratedPart(begin="<!-- begin -->", end="<!-- end -->")
BEGIN, END = PART.begin, PART.end


def test_a_bar_in_a_cell_ends_no_cell() -> None:
    table = markdown_table(["a", "b"], [["1", "x | y"], ["2", ""]])
    assert table.splitlines() == ["| a | b |", "| --- | --- |", "| 1 | x / y |", "| 2 |  |"]


@pytest.mark.parametrize("broken", ["", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_only_what_is_between_the_markers_changes_and_without_them_nothing(broken: str) -> None:
    text = f"a\n{BEGIN}\nold\n{END}\nb\n"
    assert PART.replaced(text, "new\nlines", "x") == f"a\n{BEGIN}\nnew\nlines\n{END}\nb\n"
    with pytest.raises(ProjectError, match="README.md: needs the lines <!-- begin --> and <!-- end -->, once each"):
        PART.replaced(broken, "new", "README.md")
