"""Which of several classes a stored object is.

Two classes may have the same fields, now or after the next change of the code: a charge and a refund, say. So where an
annotation offers several, an object is stored with the name of its class, and read as that class or not at all:

- A name that the annotation does not know any more, because the class was renamed or removed, is refused. Which of the
  classes there are now is meant, nobody can tell.
- An object without a name, stored while there was one class only or sent from outside, is read as the one class that
  it fits, and refused where it fits several. "Fits" is taken widely, since a field may have come or gone meanwhile.
- A dict, a TypedDict and Any are alternatives to a class, too. A dict has no name to be stored: one that would do for
  the class as well is refused at once.
- Where an annotation offers one class, objects have no name and that class may be renamed as its author likes.

Storing the name always would decide more, and cost it in every object, list and API answer; this costs nothing where
there is nothing to choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import BaseModel, Discriminator, RootModel
from typing_extensions import is_typeddict

from ironflow.codec.annotations import UNIONS, bare, fields_of, parts_of, shown, structured
from ironflow.codec.fidelity import check_same
from ironflow.codec.plain import SCALARS
from ironflow.codec.tags import Marked, Partial, Refused, segment

#: What an annotation makes of a tree, and how well the tree fits: 0 for not at all.
Fit = Callable[[Any, Any], tuple[int, Any]]

_KEEP: Final = "Keep the class under its name, and in the annotation, until the runs that have stored it are over."
_TELL: Final = "Give each class a field that only it can have, such as `kind: Literal['refund']`."
_UNKNOWN: Final = object()
_TEXT: Final = (str, bytes, bytearray)


class Classes(NamedTuple):
    """The classes an annotation is made of.

    Attributes:
        marks: those that are stored with their name, and the name.
        members: every class by the names it may have been stored under.
        choice: whether a value without a name may have to be told apart from another class's.
    """

    marks: dict[type, str]
    members: dict[str, type]
    choice: bool


def classes_of(annotation: Any) -> Classes:
    """Return the classes that an annotation offers, alone or as alternatives."""
    parts = list(parts_of(annotation))
    classes = {part for part in parts if structured(part)}
    short = Counter(cls.__qualname__ for cls in classes)
    full = Counter(map(_full_name, classes))
    members = {_full_name(cls): cls for cls in classes if full[_full_name(cls)] == 1}
    members |= {cls.__qualname__: cls for cls in classes if short[cls.__qualname__] == 1}
    unions = [part for part in parts if get_origin(part) in UNIONS]
    marks = {}
    for cls in set().union(*map(_rivals, unions)):
        name = cls.__qualname__ if short[cls.__qualname__] == 1 else _full_name(cls)
        if members.get(name) is cls:
            marks[cls] = name
    choice = any(_to_tell_apart(_taking(_arms(union), form)) for union in unions for form in (dict, list))
    return Classes(marks, members, choice)


def _rivals(union: Any) -> set[type]:
    """The classes of a union one of which could be taken for another, or for a dict."""
    found: set[type] = set()
    for form in (dict, list):
        arms = _taking(_arms(union), form)
        held = [set(_held(arm)) for arm in arms]
        classes = set().union(*held)
        # Of one class in several lists, or beside a list, there is no doubt; beside a dict there is.
        beside = form is dict and len(arms) > 1 and (not all(held) or any(structured(_class(arm)) for arm in arms))
        if len(classes) > 1 or beside:
            found |= classes
    return found


def _held(arm: Any, depth: int = 5) -> Iterator[type]:
    """The classes of an alternative: itself, or what a container holds, which may be an alias that holds itself."""
    if structured(_class(arm)):
        yield _class(arm)
    elif depth:
        for arg in get_args(arm):
            yield from _held(bare(arg), depth - 1)


def _taking(arms: Iterable[Any], form: type) -> list[Any]:
    """The alternatives that a tree of this kind may be meant for: of a list, lists only if there are any."""
    found = [arm for arm in arms if _takes(arm, form)]
    exact = [arm for arm in found if _class(arm) is form or structured(_class(arm))]
    return exact if form is not dict and any(_class(arm) is form for arm in found) else found


def _to_tell_apart(arms: list[Any]) -> bool:
    return len(arms) > 1 and any(any(_held(arm)) for arm in arms)


def _takes(arm: Any, form: type) -> bool:
    cls = _class(arm)
    if structured(cls):
        return form is dict or issubclass(cls, tuple | RootModel)
    if cls is Any or cls is object or is_typeddict(cls) or (isinstance(cls, type) and issubclass(cls, Mapping)):
        return form is dict
    return form is not dict and isinstance(cls, type) and issubclass(cls, Iterable) and not issubclass(cls, _TEXT)


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _arms(union: Any) -> Iterator[Any]:
    """The alternatives of a union, bare, those of a union among them too; None is no alternative."""
    for arm in map(bare, get_args(union)):
        if get_origin(arm) in UNIONS:
            yield from _arms(arm)
        elif arm is not type(None):
            yield arm


def _class(arm: Any) -> Any:
    return get_origin(arm) or arm


# ---- values with a name ----------------------------------------------------------------------------------


def has_tags(tree: Any) -> bool:
    """Whether there is anything in a revived tree that `opened` takes away."""
    kind = type(tree)
    if kind is dict:
        tree = tree.values()
    elif kind is not list and kind is not tuple:
        return kind is Marked or kind is Partial
    if SCALARS.issuperset(map(type, tree)):
        return False
    return any(map(has_tags, tree))


def opened(tree: Any, members: Mapping[str, type], read: Callable[[type, dict[str, Any]], Any]) -> Any:
    """Return a tree of plain data, and of an instance wherever an object says its class.

    Raises:
        Refused: one says a class that is not among the members; or `read`, which makes an instance, does.
    """
    kind = type(tree)
    if kind is Marked:
        cls = members.get(tree.name)
        if cls is None:
            raise Refused(f"it was stored as {tree.name}, which is not asked for here", _KEEP)
        return read(cls, tree.fields)
    if kind is dict or kind is Partial:
        return {key: _at(segment(key), opened, item, members, read) for key, item in tree.items()}
    if kind is list or kind is tuple:
        return kind([_at(f"[{n}]", opened, item, members, read) for n, item in enumerate(tree)])
    return tree


def _at(place: str, do: Callable[..., Any], *args: Any) -> Any:
    try:
        return do(*args)
    except Refused as refused:
        refused.trail.append(place)
        raise


# ---- values without a name -------------------------------------------------------------------------------


def check_choice(annotation: Any, tree: Any, value: Any, fit: Fit) -> None:
    """Refuse a value that was made of an object which would do for another class of a union just as well.

    Args:
        annotation: what the value was read by.
        tree: what it was made of, with its tags.
        value: what came of it.
        fit: tells how well a part of the tree fits one of the alternatives.

    Raises:
        Refused: such a part; `trail` leads to it.
    """
    if type(tree) not in (dict, Partial, list, tuple):  # a scalar; or it has a name, and was looked at by that
        return
    tp = bare(annotation)
    if get_origin(tp) not in UNIONS:
        _check_parts(tp, tree, value, fit)
        return
    arms = list(_arms(tp))
    if not _discriminated(annotation):
        _check_arms(_taking(arms, dict if isinstance(tree, dict) else type(tree)), tree, value, fit)
    for arm in arms:
        _check_parts(arm, tree, value, fit)


def _check_arms(arms: list[Any], tree: Any, value: Any, fit: Fit) -> None:
    if not _to_tell_apart(arms):
        return
    fits = [(*fit(arm, tree), shown(arm)) for arm in arms]
    best = max(level for level, _, _ in fits)
    made = [(one, name) for level, one, name in fits if level == best > 0]
    if value is not _UNKNOWN:
        made.append((value, type(value).__name__))
    try:
        for one, _ in made[1:]:
            check_same(made[0][0], one)
    except Refused:
        names = " or ".join(dict.fromkeys(name for _, name in made))
        raise Refused(f"it could be {names}, and does not say which", _TELL) from None


def _discriminated(annotation: Any) -> bool:
    """Whether the author has said how the alternatives are told apart."""
    said = getattr(annotation, "__metadata__", ())
    return any(isinstance(one, Discriminator) or getattr(one, "discriminator", None) is not None for one in said)


def _check_parts(tp: Any, tree: Any, value: Any, fit: Fit) -> None:
    for place, hint, part, made in _parts(tp, tree, value):
        _at(place, check_choice, hint, part, made, fit)


def _parts(tp: Any, tree: Any, value: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """What a value consists of, if it is one of this annotation: place, annotation, what it was made of, and it."""
    origin, args = _class(tp), get_args(tp)
    if isinstance(value, RootModel):
        yield "", fields_of(type(value))["root"], tree, value.root
    elif structured(origin) and type(value) is origin:
        yield from _fields(origin, args, tree, value)
    elif is_typeddict(origin) and isinstance(tree, dict) and type(value) is dict:
        for name, hint in fields_of(origin).items():
            if name in tree and name in value:
                yield segment(name), hint, tree[name], value[name]
    elif args and isinstance(origin, type) and isinstance(value, origin):
        yield from _items(origin, args, tree, value)


def _items(origin: type, args: tuple[Any, ...], tree: Any, value: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    if isinstance(tree, dict):
        if isinstance(value, Mapping) and len(args) == 2 and len(value) == len(tree):
            for (key, part), made in zip(tree.items(), value.values(), strict=True):
                yield segment(key), args[1], part, made
        return
    if isinstance(value, Set):  # has lost the order of what it was made of
        value = [_UNKNOWN] * len(tree)
    hints = args if origin is tuple and ... not in args else args[:1] * len(tree)
    for n, (hint, part, made) in enumerate(zip(hints, tree, value, strict=False)):
        yield f"[{n}]", hint, part, made


def _fields(cls: type, args: tuple[Any, ...], tree: Any, value: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    given = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    for n, (name, hint) in enumerate(fields_of(cls).items()):
        if not isinstance(tree, dict):  # a named tuple, by position
            if n < len(tree):
                yield f"[{n}]", hint, tree[n], value[n]
            continue
        key = name if name in tree else _alias(cls, name)
        if key in tree:
            yield segment(key), _filled(hint, given), tree[key], getattr(value, name)


def _alias(cls: type, name: str) -> Any:
    field = cls.model_fields[name] if issubclass(cls, BaseModel) else None
    alias = None if field is None else field.validation_alias
    return alias if isinstance(alias, str) else name


def _filled(hint: Any, given: dict[Any, Any]) -> Any:
    """An annotation in a generic dataclass, with what stands for the parameters."""
    if hint in given:
        return given[hint]
    names = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(one, one) for one in names)] if names and given else hint
