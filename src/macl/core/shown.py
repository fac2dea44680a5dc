"""Names, captions and sentences from data, made safe to show: terminals, tables, spreadsheets."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, those that reverse the direction of writing, and halves of characters."""

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def shown(text: str) -> str:
    """Text with control characters written out, as \\x1b; line ends and tabs stay."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """As `shown`, with line ends and tabs written out too."""
    return shown(text).replace("\n", "\\n").replace("\t", "\\t")


def to_cell(text: str) -> str:
    """Text for a CSV file: what a spreadsheet would take for a formula gets an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """The text that `to_cell` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
