"""How instances of structured classes come apart: which parts a dataclass, model, enum … consists of.

Serializers of pydantic are deliberately not asked: they may drop fields, rename them, or write a subclass as
its base, all silently. Taking the instance apart here, and letting pydantic only put it together again, makes
every such loss visible when the result is compared with the original (`fidelity`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import ipaddress
import operator
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, RootModel
from pydantic_core import MultiHostUrl, Url, to_jsonable_python

Shape = Callable[[Any], Any]

_shapes: dict[type, Shape | None] = {}
_LEAVES: Final = (
    re.Pattern, Url, MultiHostUrl,
    ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
    ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
)  # fmt: skip


def shape_of(cls: type) -> Shape | None:
    """Return the function that takes an instance of `cls` apart, or None if nothing is known of the class."""
    try:
        return _shapes[cls]
    except KeyError:
        shape = _shapes[cls] = _find(cls)
        return shape


def _find(cls: type) -> Shape | None:
    if issubclass(cls, enum.Enum):
        return lambda value: value.value
    if issubclass(cls, RootModel):
        return lambda value: value.__dict__["root"]
    if issubclass(cls, BaseModel):
        return _model(tuple(cls.model_fields))
    if dataclasses.is_dataclass(cls):
        return _attributes(tuple(field.name for field in dataclasses.fields(cls)))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return list
    if issubclass(cls, collections.deque):
        return list
    if issubclass(cls, Mapping):
        return dict
    if issubclass(cls, pathlib.PurePath):
        return str
    if issubclass(cls, _LEAVES):
        return to_jsonable_python
    return None


def _attributes(names: tuple[str, ...]) -> Shape:
    if len(names) < 2:  # attrgetter gives a tuple only from the second name on
        return lambda value: {name: getattr(value, name) for name in names}
    read = operator.attrgetter(*names)
    return lambda value: dict(zip(names, read(value), strict=True))


def _model(names: tuple[str, ...]) -> Shape:
    def parts(value: Any) -> dict[str, Any]:
        fields = value.__dict__
        out = {name: fields[name] for name in names}
        if value.__pydantic_extra__:
            out.update(value.__pydantic_extra__)
        return out

    return parts
