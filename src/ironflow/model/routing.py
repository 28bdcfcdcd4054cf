"""What a worker serves: the workflows it has, their versions, and the tags it offers, all of one scope.

It is written into the worker's session row, so every node can tell from the database which routes a session may be
given. The scope is no part of that text: it comes from the row, or from the key a worker showed, and never from what
the worker says of itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ironflow.errors import InvalidInput
from ironflow.model.capacity import SessionRow
from ironflow.model.ids import LONGEST_NAME, LONGEST_VERSION, check_text, route_of, split_route, split_routes, tags_of
from ironflow.model.scope import DEFAULT, Scope

#: What a worker that registers may serve. A node looks into the queue once for each routing class of everybody who
#: waits for work, so what one worker claims to serve is time that all others wait. A code base has dozens of workflows
#: and continues a handful of versions of each; these are far more than that, and still a fraction of a second.
MOST_WORKFLOWS, MOST_VERSIONS, MOST_ROUTES = 1_000, 100, 2_000


class Code(Protocol):
    """What routing asks of a workflow's code; `engine.definitions.WorkflowSpec` has it."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def compatible(self) -> tuple[str, ...]: ...
    @property
    def worker_tags(self) -> tuple[str, ...]: ...


class Served(NamedTuple):
    """One workflow as a worker has it: the versions its code continues (its own first), and the tags it requires."""

    versions: tuple[str, ...]
    tags: tuple[str, ...]


class Serves:
    """What one worker can take. A value: it does not change.

    Args:
        scope: whose runs it takes.
        tags: what it offers. A worker that offers none serves what its workflows require of themselves.
        workflows: by name.
    """

    __slots__ = ("_offers", "_versions", "scope", "tags", "workflows")

    def __init__(self, scope: Scope, tags: tuple[str, ...], workflows: Mapping[str, Served]) -> None:
        self.scope = scope
        self.tags = tags
        self.workflows = dict(workflows)
        offered = frozenset(tags)
        self._offers = {name: offered or frozenset(served.tags) for name, served in workflows.items()}
        self._versions = {name: frozenset(served.versions) for name, served in workflows.items()}

    @classmethod
    def of(cls, scope: Scope, tags: tuple[str, ...], specs: Iterable[Code]) -> Serves:
        """What a worker with this code and these (checked) tags serves."""
        found = {spec.name: Served((spec.version, *spec.compatible), tuple(spec.worker_tags)) for spec in specs}
        return cls(scope, tags, found)

    def can_take(self, route: str) -> bool:
        """Whether it serves a routing class: of its scope, the workflow in a fitting version, and every tag."""
        workflow, version, tags, scope = split_route(route)
        versions = self._versions.get(workflow, ())
        return version in versions and scope == self.scope and tags <= self._offers[workflow]

    def routes(self) -> list[str]:
        """The routing classes it serves by itself. A start may ask for more tags: `can_take` answers for those."""
        found = [
            route_of(name, version, served.tags, self.scope)
            for name, served in self.workflows.items()
            if self._offers[name].issuperset(served.tags)
            for version in self._versions[name]
        ]
        return sorted(found)

    def to_json(self) -> str:
        """The text for the session row."""
        return json.dumps(self.to_object(), separators=(",", ":"))

    @classmethod
    def from_json(cls, scope: Scope, text: str | None) -> Serves:
        """What `to_json` wrote; of a session that serves no route, nothing."""
        return cls._of_object(scope, json.loads(text)) if text else cls(scope, (), {})

    def to_object(self) -> dict[str, Any]:
        """The same as data, for a message."""
        workflows = {
            name: {"versions": list(served.versions), "tags": list(served.tags)}
            for name, served in self.workflows.items()
        }
        return {"tags": list(self.tags), "workflows": workflows}

    @classmethod
    def from_object(cls, scope: Scope, value: object) -> Serves:
        """What a worker says that it serves.

        Args:
            scope: of the key that the worker showed.
            value: the object of its message, as it came.

        Raises:
            InvalidInput: it is not of this form, or is more than one worker may serve; the message names the part.
        """
        parts = _object(value, "serves")
        named = _object(parts.get("workflows"), "serves.workflows")
        _bounded(named)
        return cls._of_object(scope, {**parts, "workflows": named})

    @classmethod
    def _of_object(cls, scope: Scope, value: object) -> Serves:
        parts = _object(value, "serves")
        workflows = {
            name: _served(name, part) for name, part in _object(parts.get("workflows"), "serves.workflows").items()
        }
        return cls(scope, tags_of(texts(parts.get("tags", []), "serves.tags"), "serves.tags"), workflows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Serves):
            return NotImplemented
        return (self.scope, self.tags, self.workflows) == (other.scope, other.tags, other.workflows)

    def __hash__(self) -> int:
        return hash((self.scope, self.tags, frozenset(self.workflows.items())))

    def __repr__(self) -> str:
        return f"Serves({self.scope}, tags={self.tags}, workflows={sorted(self.workflows)})"


def own_runs(run_ids: Iterable[str]) -> str:
    """The text for the session row of a worker that serves no route, and takes these runs alone."""
    return json.dumps({"tags": [], "workflows": {}, "runs": sorted(run_ids)}, separators=(",", ":"))


def has_own(session: SessionRow, run_id: str) -> bool:
    """Whether a session takes this run whatever its route, because it was started or taken on there."""
    return session.serves is not None and run_id in json.loads(session.serves).get("runs", ())


def serves_queue(session: SessionRow) -> bool:
    """Whether runs come to a session by their routes; `ironflow run` and isolated children are given theirs."""
    return bool(session.routes) or (session.serves is not None and "runs" not in json.loads(session.serves))


def takes(session: SessionRow, run_id: str, route: str) -> bool:
    """Whether a session takes this run: as one of its own, or by its route."""
    if session.serves is None:
        return route in split_routes(session.routes)
    return Serves.from_json(session.scope, session.serves).can_take(route) or has_own(session, run_id)


def current(seen: Iterable[dict[str, Any]], serving: Iterable[str]) -> list[dict[str, Any]]:
    """Of each workflow, by name, the version that new runs get: of those of live workers, the one first seen last.

    Versions are names, which have no order of their own, so the order in which they appeared is theirs. A worker of an
    old version that registers again changes nothing; when the last worker of a new one is gone, because it was taken
    back, the one before it counts again. Where nobody lives, the one that appeared last does.

    Args:
        seen: a row for each version of each workflow: `name`, `version`, `first_seen_at`, and more.
        serving: what live workers of the same scope serve, as `Serves.to_json` wrote it.
    """
    live = {
        (name, served.versions[0])
        for text in set(serving)
        for name, served in Serves.from_json(DEFAULT, text).workflows.items()
    }
    found: dict[str, dict[str, Any]] = {}
    for row in sorted(seen, key=lambda row: (row["first_seen_at"], row["version"])):
        before = found.get(row["name"])
        if before is None or (row["name"], row["version"]) in live or (before["name"], before["version"]) not in live:
            found[row["name"]] = row
    return [found[name] for name in sorted(found)]


def _bounded(workflows: Mapping[str, object]) -> None:
    """Refuse more than one worker may serve, before any of it is looked at."""
    if len(workflows) > MOST_WORKFLOWS:
        problem = f"serves.workflows has {len(workflows):,} entries; {MOST_WORKFLOWS:,} is the most of one worker"
        raise InvalidInput(problem, hint="Split the workflows among several workers.")
    routes = 0
    for name, part in workflows.items():
        versions = part.get("versions") if isinstance(part, dict) else None
        if not isinstance(versions, list):
            continue  # refused where it is read
        if len(versions) > MOST_VERSIONS:
            place = f"serves.workflows.{name[:LONGEST_NAME]}"
            problem = f"{place} has {len(versions):,} versions; {MOST_VERSIONS} is the most"
            raise InvalidInput(problem, hint="Leave out the versions of which no run lives any more.")
        routes += len(versions)
    if routes > MOST_ROUTES:
        problem = f"serves names {routes:,} versions of workflows; {MOST_ROUTES:,} is the most of one worker"
        raise InvalidInput(problem, hint="Split the workflows among several workers.")


def _served(name: str, value: object) -> Served:
    check_text(name, "the name of a workflow")
    parts = _object(value, f"serves.workflows.{name}")
    versions = texts(parts.get("versions"), f"the versions of {name}")
    for version in versions:
        check_text(version, f"a version of {name}", LONGEST_VERSION)
    if not versions:
        raise InvalidInput(f"workflow {name} is served in no version", hint="")
    return Served(versions, tags_of(texts(parts.get("tags", []), f"the tags of {name}"), f"the tags of {name}"))


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidInput(f"{what} must be an object, not {type(value).__name__}", hint="")
    return value


def texts(value: object, what: str) -> tuple[str, ...]:
    """A list of texts that came from outside.

    Raises:
        InvalidInput: it is something else; the message calls it `what`.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise InvalidInput(f"{what} must be a list of texts", hint="")
    return tuple(value)
