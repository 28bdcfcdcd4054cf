"""`docs/write-a-workflow.md` does what it says: its file is taken from the page and run."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import ironflow

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def source(tmp_path: Path) -> Path:
    page = (ROOT / "docs" / "write-a-workflow.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- shop:begin -->\n```python\n(.*?)```\n<!-- shop:end -->", page, re.S)
    assert found is not None
    file = tmp_path / "shop.py"
    assert 'ctx.sleep("5s")' in found[1]
    file.write_text(found[1].replace('"5s"', '"50ms"'), encoding="utf-8")  # only the wait is shorter
    return file


@pytest.fixture
def shop(source: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(source.parent)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    return importlib.import_module("shop")


def test_an_order_is_charged_at_the_second_try_and_packed(shop: ModuleType, store_url: str) -> None:
    with ironflow.open(store_url, strict=True) as engine:
        run = engine.wait(engine.start(shop.take_order, shop.Order("A-1", 4200, ["ink", "paper"])))
        receipt = engine.wait(run.result(timeout=30))
        steps = engine.wait(run.status()).steps.values()
    assert receipt.parcels == ["parcel with ink", "parcel with paper"]
    assert [(step.name, len(step.tries)) for step in steps] == [("charge", 2), ("pack", 1), ("pack", 1)]


def test_an_order_that_cannot_be_packed_is_refunded(
    shop: ModuleType, store_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        ironflow.open(store_url, strict=True) as engine,
        pytest.raises(ironflow.RunFailed, match="there are no unicorns left"),
    ):
        engine.wait(engine.run(shop.take_order, shop.Order("A-2", 100, ["ink", "unicorn"])))
    assert capfd.readouterr().out == "refunding what was charged for A-2, if anything was\n"


def test_a_declined_card_is_not_tried_again(shop: ModuleType, sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, strict=True) as engine:
        run = engine.wait(engine.start(shop.take_order, shop.Order("A-3", 100, ["ink"], card="stolen")))
        with pytest.raises(ironflow.RunFailed, match="declined"):
            engine.wait(run.result(timeout=30))
        steps = engine.wait(run.status()).steps.values()
    assert [(step.name, len(step.tries)) for step in steps] == [("charge", 1), ("refund", 1)]


def test_the_tests_of_the_page_pass(source: Path) -> None:
    page = (ROOT / "docs" / "write-a-workflow.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- test:begin -->\n```python\n(.*?)```\n<!-- test:end -->", page, re.S)
    assert found is not None
    (source.parent / "test_shop.py").write_text(found[1], encoding="utf-8")
    words = ["-q", "-p", "no:cacheprovider", "--rootdir", str(source.parent), str(source.parent / "test_shop.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=source.parent,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_is_typed(source: Path) -> None:
    words = ["--strict", "--follow-imports=silent", "--cache-dir", str(source.parent / "cache"), str(source)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words],
        cwd=source.parent,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
