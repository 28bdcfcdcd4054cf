"""An agent's loop: the model says what to do, tools do it, until the model answers.

The model here is a script, so that the example needs no account; put your provider's call in the body of
`think` and nothing else changes. What counts is the shape: a model call is a step of kind "llm", so an answer
that was paid for is in the journal and is never bought again, whatever crashes afterwards.

    ironflow run examples/research_agent.py:research --input '"How many lines has the longest example?"'
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ironflow import Context, Retry, RetryAfterError, step, step_info, workflow

MOST_TURNS = 8  # an agent without a limit is a bill without one


@dataclass
class Thought:
    """What the model said: a tool to call, or the answer."""

    tool: str = ""
    argument: str = ""
    answer: str = ""
    tokens: int = 0


@dataclass
class Report:
    answer: str
    turns: int
    tokens: int


@workflow
async def research(ctx: Context, question: str) -> Report:
    """Model and tools in turn. Plain Python: the loop's state comes back by replay."""
    notes = [question]
    tokens = 0
    for turn in range(1, MOST_TURNS + 1):
        ctx.set_status(f"turn {turn}")
        thought = await think(notes)
        tokens += thought.tokens
        if thought.answer:
            return Report(thought.answer, turn, tokens)
        notes.append(await use_tool(thought.tool, thought.argument))
    return Report("no answer within the limit", MOST_TURNS, tokens)


@step(kind="llm", retry=Retry(4, on="llm"), timeout="1m")
def think(notes: list[str]) -> Thought:
    """One call of the model, which is overloaded at first and says when to come back."""
    if len(notes) == 1 and step_info().attempt == 1:
        raise RetryAfterError("the model is overloaded", after="100ms")
    if len(notes) == 1:
        return Thought(tool="list", argument=".", tokens=120)
    if len(notes) == 2:
        return Thought(tool="count", argument=notes[1], tokens=240)
    longest, lines = notes[2].split()
    return Thought(answer=f"{longest} has {lines} lines", tokens=90)


@step
def use_tool(tool: str, argument: str) -> str:
    """The tools: `list` the examples, `count` the lines of each and name the longest."""
    folder = Path(__file__).resolve().parent
    if tool == "list":
        return " ".join(sorted(path.name for path in folder.glob("*.py")))
    counts = {name: (folder / name).read_text(encoding="utf-8").count("\n") for name in argument.split()}
    longest = max(counts, key=lambda name: counts[name])
    return f"{longest} {counts[longest]}"
