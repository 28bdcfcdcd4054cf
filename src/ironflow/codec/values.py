"""User values ⇄ text. What is stored comes back equal and of the same type, or it is refused at once.

A `Codec` belongs to one annotation. Plain JSON data takes a path without pydantic; everything else is packed
(`tags`), written, read back, put together by pydantic and compared with the original (`fidelity`) before the
text is handed out. Checking at once costs microseconds; finding out at replay, days later and on another
machine, that a result cannot be read would cost the run. Since that check yields a faithful copy anyway,
`snapshot` returns it: the workflow sees the same value live as after a crash, and shares nothing with a step.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json
from typing_extensions import is_typeddict

from ironflow.codec.annotations import (
    allows_extra,
    for_pydantic,
    shown,
    structured_arms,
    union_members,
)
from ironflow.codec.fidelity import check_same
from ironflow.codec.plain import SCALARS, Check, exact_check, plain_check
from ironflow.codec.tags import Marked, Packer, Refused, revive, segment
from ironflow.errors import PayloadError, PayloadRejected, PayloadTooLarge

__all__ = ["Codec", "StoredForm", "codec_for", "encode_any", "parse"]

_TOO_LONG_INT: Final = re.compile(r"\d{4201}")
#: What pydantic calls a field too many: of a dataclass; and of a model or a TypedDict as well.
_NOT_A_FIELD: Final = frozenset({"unexpected_keyword_argument"})
_UNKNOWN_FIELD: Final = _NOT_A_FIELD | {"extra_forbidden"}
_UNTYPED: Final = Packer()
_TYPED: Final = Packer(typed=True)
_codecs: dict[Any, Codec] = {}


def parse(text: str) -> Any:
    """Return the tree of a stored text: JSON with the tags turned into the values they stand for.

    Raises:
        PayloadRejected: the text is no JSON, or holds a tag this release does not know.
    """
    try:
        tree = from_json(text)
        return revive(tree) if '"$' in text else tree
    except ValueError as error:
        raise PayloadRejected(
            "stored value", f"cannot be read: {error}", hint="It was written by a newer release, or damaged."
        ) from error


def codec_for(annotation: Any) -> Codec:
    """Return the codec of an annotation. It is made once; the costly part only when it is first needed."""
    try:
        # Unions are equal in any order, but their order decides between arms: hence the repr.
        key = (annotation, repr(annotation))
        codec = _codecs.get(key)
        if codec is None:
            codec = _codecs[key] = Codec(annotation)
    except TypeError:  # Annotated[...] with an unhashable argument
        return Codec(annotation)
    return codec


def encode_any(value: Any, *, path: str = "value", limit: int | None = None) -> str:
    """Return the text of a value nothing is known about.

    Args:
        value: JSON data, and the further kinds that have a tag; instances of classes are refused, because
            without an annotation they could not be put together again.
        path: what the value is, for errors.
        limit: largest size in bytes of UTF-8; None for no limit.

    Raises:
        PayloadRejected: a part cannot be stored faithfully; names its path.
        PayloadTooLarge: the text is over the limit.
    """
    return _ANY.encode(value, path=path, limit=limit)


class Codec:
    """Stores and reads the values of one annotation. Get it from `codec_for`; it is safe to share.

    Attributes:
        annotation: what values must be.
    """

    __slots__ = ("_adapter", "_check", "_exact", "_members", "_packer", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._check: Check | None = plain_check(annotation)
        self._exact: Check | None = None
        self._adapter: TypeAdapter[Any] | None = None
        self._members: dict[str, type] = {}
        self._packer = _TYPED

    def encode(self, value: Any, *, path: str = "result", limit: int | None = None) -> str:
        """Return the text to store. See `snapshot` for arguments and errors."""
        check = self._check
        if check is not None and check(value):
            text = _plain_text(value)
            if text is not None:
                if limit is not None and len(text) * 4 > limit:
                    _check_size(text, path, limit)
                return text
        return self._store(value, path, limit)[0]

    def snapshot(self, value: Any, *, path: str = "result", limit: int | None = None) -> tuple[str, Any]:
        """Return the text to store, and the value as reading that text gives it.

        Args:
            value: an instance of the annotation.
            path: what the value is, for errors: the first part of `result.items[3].rate`.
            limit: largest size in bytes of UTF-8; None for no limit.

        Raises:
            PayloadRejected: a part is not what the annotation says, or would not come back equal and of the
                same type.
            PayloadTooLarge: the text is over the limit.
        """
        check = self._check
        if check is not None and check(value):
            text = _plain_text(value)
            if text is not None:
                if limit is not None and len(text) * 4 > limit:
                    _check_size(text, path, limit)
                return text, value if type(value) in SCALARS else from_json(text)
        return self._store(value, path, limit)

    def copy(self, value: Any) -> Any:
        """Return what storing and reading the value would give. Errors as in `snapshot`."""
        return self.snapshot(value, path="value")[1]

    def decode(self, text: str, *, path: str = "value") -> Any:
        """Return the value of a stored text.

        Raises:
            PayloadRejected: the text cannot be read, or no longer fits the annotation.
        """
        return self.validate(parse(text), path=path)

    def validate(self, tree: Any, *, path: str = "value") -> Any:
        """Return the value of a tree made by `parse`. The tree may become part of it.

        Also used for input from outside: ISO text is accepted where the annotation wants a date, and so on.

        Raises:
            PayloadRejected: the tree does not fit the annotation.
        """
        if (self._check is not None and self._check(tree)) or self is _ANY:
            return tree
        adapter = self._ready(path)
        try:
            return self._build(adapter, tree, path)
        except ValidationError as error:
            where, reason = _first_error(error)
            raise PayloadRejected(path + where, reason) from error
        except Exception as error:  # validators are the authors' code
            raise PayloadRejected(path, _failed(error)) from error

    def unknown_fields(self, tree: Any, *, path: str = "value") -> list[str]:
        """The places of a tree at which it has a field that the annotation does not know.

        `validate` ignores these, so that a result with a field more can be read by code that does not know it yet. What
        a person types is another matter: there, a field nobody knows is a slip.
        """
        if (self._check is not None and self._check(tree)) or self is _ANY:
            return []
        try:
            self._ready(path).validate_python(tree, strict=False, extra="forbid", by_alias=True, by_name=True)
        except ValidationError as error:
            kinds = _NOT_A_FIELD if allows_extra(self.annotation) else _UNKNOWN_FIELD
            found = [one["loc"] for one in error.errors(include_url=False) if one["type"] in kinds]
            return [path + _where(loc) for loc in found]
        return []

    # ---- typed and tagged values

    def _store(self, value: Any, path: str, limit: int | None) -> tuple[str, Any]:
        try:
            if self is _ANY:
                text = to_json(_UNTYPED.pack(value)).decode()
                back = value if type(value) in SCALARS else parse(text)
            else:
                adapter = self._ready(path)
                exact = self._exact is not None and self._exact(value)
                quick = _plain_text(value) if exact else None
                text = to_json(self._packed(adapter, value)).decode() if quick is None else quick
                if limit is not None and len(text) > limit:
                    _check_size(text, path, limit)
                back = self._build(adapter, parse(text), path)
                if quick is None:
                    check_same(value, back)
        except Refused as refused:
            raise PayloadRejected(refused.path(path), refused.reason, hint=refused.hint) from None
        except ValidationError as error:
            raise self._misfit(value, path, error) from error
        except PayloadError:
            raise
        except Exception as error:  # validators and properties are the authors' code
            raise PayloadRejected(path, _failed(error)) from error
        if limit is not None and len(text) * 4 > limit:
            _check_size(text, path, limit)
        return text, back

    def _ready(self, path: str) -> TypeAdapter[Any]:
        """Return the adapter, made at the first need: building one takes most of a millisecond."""
        adapter = self._adapter
        if adapter is None:
            try:
                adapter = TypeAdapter(for_pydantic(self.annotation))
            except Exception as error:  # pydantic's own errors, and those of the classes involved
                why = str(error).splitlines()[0].split(". ")[0]
                raise PayloadRejected(path, f"{shown(self.annotation)} has no stored form: {why}") from error
            marks = union_members(self.annotation)
            self._members = {name: cls for cls, name in marks.items()}
            if marks:
                self._packer = Packer(typed=True, marks=marks)
            else:
                self._exact = exact_check(self.annotation)
            self._adapter = adapter
        return adapter

    def _packed(self, adapter: TypeAdapter[Any], value: Any) -> Any:
        try:
            return self._packer.pack(value)
        except Refused as refused:
            if not refused.unknown:
                raise
            # A class that explains itself to pydantic (custom schema, PlainSerializer) may still be written.
            try:
                plain = adapter.dump_python(value, round_trip=True, warnings=False)
                return self._packer.pack(plain)
            except (Refused, PydanticSerializationError):
                raise refused from None

    def _build(self, adapter: TypeAdapter[Any], tree: Any, path: str) -> Any:
        if self._members or type(tree) is Marked:
            offered = self._members or structured_arms(self.annotation)
            tree = _unmark(tree, offered, path) if offered else tree
        # Names and aliases are both accepted: stored values use names, input from outside uses aliases.
        # Strict mode would ask for instances, which a stored form lacks; the comparison is stricter anyway.
        return adapter.validate_python(tree, strict=False, by_alias=True, by_name=True)

    def _misfit(self, value: Any, path: str, error: ValidationError) -> PayloadRejected:
        expected = type(None) if self.annotation is None else self.annotation
        if isinstance(expected, type) and not (is_typeddict(expected) or isinstance(value, expected)):
            return PayloadRejected(path, f"expected {shown(expected)}, got {type(value).__name__}")
        where, reason = _first_error(error)
        return PayloadRejected(path + where, reason)


class StoredForm:
    """Takes the tree of a stored text, tags and all, where the annotation that it was encoded by is not known."""

    __slots__ = ()

    def encode(self, value: Any, *, path: str = "value", limit: int | None = None) -> str:
        """Return the text of the tree.

        Raises:
            PayloadRejected: it holds what no value is stored as.
            PayloadTooLarge: the text is over the limit.
        """
        try:
            text = to_json(value).decode()
            parse(text)
        except (PydanticSerializationError, ValueError) as error:  # half a surrogate pair
            raise PayloadRejected(path, f"it has no JSON form: {error}") from error
        except PayloadRejected as error:
            hint = "It is no value in the form in which Ironflow stores it."
            raise PayloadRejected(path, error.reason, hint=hint) from error
        if limit is not None:
            _check_size(text, path, limit)
        return text


def _plain_text(value: Any) -> str | None:
    """Return the text of plain JSON data, or None if something in it needs a closer look."""
    try:
        text = to_json(value).decode()
    except (PydanticSerializationError, ValueError):  # half a surrogate pair
        return None
    # Looking for what could matter in the text is cheaper than looking at each value; a false alarm only
    # takes the slower path, which gives the same text.
    if '"$' in text or "NaN" in text or "Infinity" in text:
        return None
    if len(text) > 4200 and _TOO_LONG_INT.search(text):
        return None
    return text


def _check_size(text: str, what: str, limit: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise PayloadTooLarge(what, size, limit)


def _unmark(tree: Any, members: dict[str, type], path: str) -> Any:
    """Put together the objects that carry their class. The fields of one whose class is not offered (any more) may fit
    another one that is, which they were never meant for: a charge is no refund.
    """
    kind = type(tree)
    if kind is Marked:
        fields = {key: _unmark(item, members, path) for key, item in tree.items()}
        cls = members.get(tree.name)
        if cls is None:
            raise PayloadRejected(path, f"it was stored as {tree.name}, and none of that name is asked for here")
        return codec_for(cls).validate(fields, path=path)
    if kind is dict:
        return {key: _unmark(item, members, path) for key, item in tree.items()}
    if kind is list or kind is tuple:
        return kind(_unmark(item, members, path) for item in tree)
    return tree


def _first_error(error: ValidationError) -> tuple[str, str]:
    first = error.errors(include_url=False, include_context=False, include_input=True)[0]
    where = _where(first["loc"])
    message = first["msg"][:1].lower() + first["msg"][1:]
    return where, f"{message} (got {type(first['input']).__name__})"


def _where(loc: tuple[int | str, ...]) -> str:
    return "".join(segment(part) if isinstance(part, str) else f"[{part}]" for part in loc)


def _failed(error: Exception) -> str:
    try:
        lines = str(error).splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"
    except Exception:  # its __str__ fails too
        return type(error).__name__


_ANY: Final = Codec(Any)
_codecs[(Any, repr(Any))] = _ANY
_codecs[(object, repr(object))] = _ANY
