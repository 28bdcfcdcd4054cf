"""What is given with `--input`, turned into what the workflow asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ironflow.cli.inputs import MISSING, read_input, typed_input
from ironflow.context import Context, workflow
from ironflow.errors import InvalidInput


@workflow
async def par(ctx: Context, n: int = 12) -> int:
    return n


@workflow
async def needs(ctx: Context, n: int) -> int:
    return n


def test_an_input_that_is_left_out_is_the_default_of_the_signature() -> None:
    assert typed_input(par.spec, MISSING) == 12
    assert typed_input(par.spec, 0) == 0
    with pytest.raises(InvalidInput, match=r"needs an input. Give it with --input. Expected: integer"):
        typed_input(needs.spec, MISSING)


def test_a_file_that_is_not_there_is_told_with_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_input(f"@{tmp_path}/nope.json")
    assert refused.value.hint == "Name a file of JSON text: --input @order.json."


def test_a_number_that_is_too_large_for_one_is_refused_like_any_other_no_json() -> None:
    with pytest.raises(InvalidInput, match="no JSON: a number is too large"):
        read_input("1e999")
