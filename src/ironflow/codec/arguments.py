"""The arguments of a call ⇄ text, by the signature of the function called.

The text is what a step's journal entry holds, and its digest is what replay compares. So it is independent of
how the call is written: `charge(order, 3)` and `charge(order, amount=3)` give the same text, and defaults are
left out, so that adding a parameter with a default changes no digest of a recorded run.

    []                                      no arguments
    [{"id": 7}, 3]                          positional, by the order of the signature
    {"args": [...], "kwargs": [[name, value], ...]}   some can only be given by name
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

from ironflow.codec.annotations import resolve
from ironflow.codec.values import Codec, codec_for, parse
from ironflow.errors import InvalidInput, PayloadTooLarge

__all__ = ["Arguments", "digest", "result_codec", "written", "wrong_call"]

_SIGNATURE = "Give the arguments the signature asks for."
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_UNKNOWN = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)


def digest(text: str) -> str:
    """Return 16 hex digits that stand for a stored text: the beginning of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def result_codec(fn: Callable[..., Any]) -> Codec:
    """Return the codec of what a function returns; of any value, when its annotation is absent or unknown."""
    return codec_for(resolve(fn).get("return", Any))


class _Written:
    """An annotation that is shown as its author wrote it, where Python knows it as text only."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def written(signature: inspect.Signature) -> inspect.Signature:
    """A signature to be shown: `from __future__ import annotations` makes texts of all annotations, in quotes."""

    def plain(annotation: Any) -> Any:
        return _Written(annotation) if isinstance(annotation, str) else annotation

    parameters = [p.replace(annotation=plain(p.annotation)) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=plain(signature.return_annotation))


def wrong_call(fn: Callable[..., Any], signature: inspect.Signature, error: TypeError) -> InvalidInput:
    """What is said of a call that does not fit the function: `error` is what binding the arguments raised."""
    return InvalidInput(f"{_name(fn)}{written(signature)} cannot be called like this: {error}", hint=_SIGNATURE)


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", None) or type(fn).__name__


class Arguments:
    """Stores and reads the arguments of one function.

    Args:
        fn: the function; annotations that cannot be resolved count as Any.
        skip: how many leading positional parameters are not the caller's (a connection, a context).

    Attributes:
        name: the function's name, for errors.
    """

    __slots__ = (
        "_by_name",
        "_fn",
        "_least",
        "_names",
        "_others",
        "_params",
        "_rest",
        "_signature",
        "_simple",
        "name",
    )

    def __init__(self, fn: Callable[..., Any], *, skip: int = 0) -> None:
        self._fn = fn
        self.name: str = _name(fn)
        hints = resolve(fn)
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError):  # some functions written in C have none
            signature = _UNKNOWN
        parameters = list(signature.parameters.values())[skip:]
        self._signature = signature.replace(parameters=parameters)
        codecs = {p.name: codec_for(hints.get(p.name, Any)) for p in parameters}
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        self._names = tuple(p.name for p in positional)
        self._params = tuple(codecs[name] for name in self._names)
        self._rest: tuple[str, Codec] | None = None
        self._others: Codec | None = None
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                self._rest = (p.name, codecs.pop(p.name))
            elif p.kind is p.VAR_KEYWORD:
                self._others = codecs.pop(p.name)
        self._by_name = codecs
        required = [p for p in parameters if p.name in codecs and p.default is p.empty]
        # Calls by position alone need no binding, which would cost more than all the rest.
        self._simple = all(p.kind in _POSITIONAL for p in required)
        self._least = len(required)

    def encode(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, path: str = "args", limit: int | None = None
    ) -> str:
        """Return the text of a call's arguments. See `snapshot` for arguments and errors."""
        return self.snapshot(args, kwargs, path=path, limit=limit)[0]

    def snapshot(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, path: str = "args", limit: int | None = None
    ) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """Return the text of a call's arguments, and copies of them for the function's body.

        The body works on copies so that what it does to its arguments is not seen by the workflow: after a
        crash nobody would do it again.

        Args:
            args: positional arguments.
            kwargs: arguments given by name.
            path: how errors call the arguments: the first part of `args.order.items[3]`.
            limit: largest size of the whole text in bytes of UTF-8; None for no limit.

        Raises:
            InvalidInput: the function cannot be called like this.
            PayloadRejected: an argument cannot be stored faithfully.
            PayloadTooLarge: the text is over the limit.
        """
        if kwargs or not (self._simple and self._least <= len(args) <= len(self._names)):
            args, kwargs = self._bind(args, kwargs)
        if not args and not kwargs:
            return "[]", (), {}
        texts: list[str] = []
        copies: list[Any] = []
        for index, value in enumerate(args):
            codec, name = self._at(index, path)
            text, copy = codec.snapshot(value, path=name, limit=limit)
            texts.append(text)
            copies.append(copy)
        whole = f"[{','.join(texts)}]"
        named: dict[str, Any] = {}
        if kwargs:
            pairs: list[str] = []
            for name, value in kwargs.items():
                text, named[name] = self._named(name).snapshot(value, path=f"{path}.{name}", limit=limit)
                pairs.append(f"[{_NAME.encode(name)},{text}]")
            whole = f'{{"args":{whole},"kwargs":[{",".join(pairs)}]}}'
        if limit is not None and len(whole) * 4 > limit:
            size = len(whole.encode())
            if size > limit:
                raise PayloadTooLarge(path, size, limit)
        return whole, tuple(copies), named

    def decode(self, text: str, *, path: str = "args") -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and named arguments of a stored text.

        Raises:
            InvalidInput: the text does not fit the signature.
            PayloadRejected: the text cannot be read, or a value no longer fits its annotation.
        """
        tree = parse(text)
        named: list[Any] = []
        if type(tree) is dict and tree.keys() == {"args", "kwargs"}:
            tree, named = tree["args"], tree["kwargs"]
        if type(tree) is not list or (len(tree) > len(self._names) and self._rest is None):
            shown = f"{self.name}{written(self._signature)}"
            raise InvalidInput(f"the stored arguments do not fit {shown}", hint=_SIGNATURE)
        args = []
        for index, item in enumerate(tree):
            codec, name = self._at(index, path)
            args.append(codec.validate(item, path=name))
        kwargs = {name: self._named(name).validate(item, path=f"{path}.{name}") for name, item in named}
        return tuple(args), kwargs

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise wrong_call(self._fn, self._signature, error) from None
        return bound.args, bound.kwargs

    def _at(self, index: int, path: str) -> tuple[Codec, str]:
        if index < len(self._names):
            return self._params[index], f"{path}.{self._names[index]}"
        name, codec = self._rest or ("", _ANY)
        return codec, f"{path}.{name}[{index - len(self._names)}]"

    def _named(self, name: str) -> Codec:
        codec = self._by_name.get(name) or self._others
        if codec is None:
            raise InvalidInput(f"{self.name}{written(self._signature)} has no parameter {name}", hint=_SIGNATURE)
        return codec


_ANY = codec_for(Any)
_NAME = codec_for(str)
