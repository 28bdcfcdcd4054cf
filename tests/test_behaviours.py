"""`docs/behaviours.md` and the tests agree on what is proven where."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parent
LIST = TESTS.parent / "docs" / "behaviours.md"


def proven() -> dict[str, set[str]]:
    """Every code that test names carry, and the tests that carry it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M):
            carried = re.match(r"test_((?:[grp]\d+_)+)", name)
            for code in carried[1].strip("_").split("_") if carried else ():
                found[code.upper()].add(f"{path.relative_to(TESTS.parent).as_posix()}::{name}")
    return found


def test_every_code_in_a_test_s_name_is_listed_with_exactly_its_tests() -> None:
    listed: dict[str, set[str]] = {}
    for code, sentence, tests in re.findall(
        r"^\| ([GRP]\d+) \| (.+?) \| (.*) \|$", LIST.read_text(encoding="utf-8"), re.M
    ):
        assert code not in listed, f"{code} is listed twice"
        assert sentence.endswith("."), f"{code} needs a sentence"
        listed[code] = set(re.findall(r"`([^`]+)`", tests))
    assert listed == proven()
