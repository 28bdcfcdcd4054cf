"""`docs/behaviours.md` and the tests agree on what is proven where."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LIST = TESTS.parent / "docs" / "behaviours.md"
#: How many behaviours each letter has.
COUNTS = {"G": 40, "R": 50, "P": 30}


def proven() -> dict[str, set[str]]:
    """Every code that test names carry, and the tests that carry it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M):
            carried = re.match(r"test_((?:[grp]\d+_)+)", name)
            for code in carried[1].strip("_").split("_") if carried else ():
                found[code.upper()].add(f"{path.relative_to(TESTS.parent).as_posix()}::{name}")
    return found


def listed() -> dict[str, set[str]]:
    """Every code that has a row, and the tests named there."""
    found: dict[str, set[str]] = {}
    for code, sentence, tests in re.findall(
        r"^\| ([GRP]\d+) \| (.+?) \| (.*) \|$", LIST.read_text(encoding="utf-8"), re.M
    ):
        assert code not in found, f"{code} is listed twice"
        assert sentence.endswith("."), f"{code} needs a sentence"
        found[code] = set(re.findall(r"`([^`]+)`", tests))
    return found


def test_every_code_in_a_test_s_name_is_listed_with_exactly_its_tests() -> None:
    assert listed() == proven()


def test_every_code_is_listed_or_named_as_one_that_is_not_there_yet() -> None:
    (paragraph,) = [text for text in LIST.read_text(encoding="utf-8").split("\n\n") if text.startswith("Not there yet")]
    absent = re.findall(r"\b[GRP]\d+\b", paragraph)
    every = {f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)}
    assert sorted([*absent, *listed()]) == sorted(every), "each code once, in a row or in that paragraph"
