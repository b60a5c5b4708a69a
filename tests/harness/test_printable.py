"""What a terminal would obey is shown instead, in plain text and in what JSON holds."""

import json

import pytest

from harness.printable import printable, printable_json, shortened


def test_control_characters_are_shown_and_all_else_stays() -> None:
    assert printable("a\x1b[31mb\x00c\x9bd\u202ee\udcfff") == r"a\x1b[31mb\x00c\x9bd\u202ee\udcfff"
    assert printable("é 中 😀\n\tx") == "é 中 😀\n\tx"
    assert printable("a\nb", keep="") == r"a\nb"


@pytest.mark.parametrize(
    ("escaped", "read"),
    [
        (r"\u001b[31m", r"\u001b[31m"),
        (r"\\u001b", r"\u001b"),  # a backslash and letters, which it was before
        (r"\b\f\r", r"\u0008\u000c\u000d"),
        (r"\n\t\"\/é", '\n\t"/é'),
        (r"\ud83d\ude00", "😀"),
        (r"\ud800", r"\ud800"),
        (r"\u00e9", "é"),
        ("\x7f\u202e😀", "\\x7f\\u202e😀"),
    ],
)
def test_what_json_holds_is_printable_once_it_is_read(escaped: str, read: str) -> None:
    assert json.loads(printable_json(f'{{"a": "{escaped}"}}')) == {"a": read}


def test_a_message_shows_the_beginning_only() -> None:
    assert shortened("x" * 5000) == "x" * 57 + "..."
    assert shortened(" a\n b ") == "a b"
