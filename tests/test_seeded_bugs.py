"""The seeded bugs can be put in: `python tests/seeded_bugs.py` shows that tests find them."""

from __future__ import annotations

import pytest

from seeded_bugs import BUGS, TESTS, Bug, occurrences


@pytest.mark.slow  # not for its time: while code is under way, texts change
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_be_put_in(bug: Bug) -> None:
    assert occurrences(bug) == 1, f"{bug.file} has changed: {bug.old}"
    assert bug.new != bug.old
    for test in bug.tests:
        assert (TESTS / test.partition("::")[0]).is_file(), test


def test_names_are_unique() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
