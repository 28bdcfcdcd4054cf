"""Making keys: their secret, which is shown once, and the row that is kept of it.

A key is its kind's prefix and 32 random bytes as 43 letters and digits. That is too much to guess, so its hash needs
neither salt nor slowness, and a lookup by the hash compares nothing that a clock could tell about the secret.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import string
from collections.abc import Sequence
from typing import Final

from ironflow.errors import InvalidInput
from ironflow.model import key as kinds
from ironflow.model.ids import check_text
from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope, check_scope
from ironflow.model.transition import Audit
from ironflow.store.base import Store

#: What a key of each kind begins with: a key that lies where it should not is known at sight, by scanners, too.
PREFIXES: Final = {kinds.ORG: "ifkey_", kinds.PLATFORM: "ifplatform_", kinds.WORKER: "ifworker_"}

#: The scope of what concerns no organisation: none can have this name, so none is shown it.
EVERYWHERE: Final = Scope("*", "*")

_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_BYTES: Final = 32
#: Digits of base 62 that hold so many bytes.
_LENGTH: Final = 43
_FORM: Final = re.compile(rf"(?:{'|'.join(PREFIXES.values())})[0-9A-Za-z]{{{_LENGTH}}}", re.ASCII)
#: Most workflows that a worker's key is bound to.
MOST_WORKFLOWS: Final = 1_000


def issue(
    kind: str,
    name: str,
    *,
    now: int,
    by: str,
    scope: Scope = DEFAULT,
    role: str | None = None,
    workflows: Sequence[str] | None = None,
    expires_at: int | None = None,
) -> tuple[KeyRow, str]:
    """A new key: its row, for `Store.add_key`, and the key itself, which nobody can see again.

    Args:
        kind: `org`, `platform` or `worker`.
        name: what people call it.
        now: the time, milliseconds since 1970.
        by: who makes it.
        scope: whose it is; a platform key has none of its own.
        role: of an `org` key, and only of one.
        workflows: what a `worker` key is bound to; None: any.
        expires_at: when it ends by itself, milliseconds since 1970.

    Raises:
        InvalidInput: these do not go together; the message says which.
    """
    scope = check_scope(*scope) if kind != kinds.PLATFORM else EVERYWHERE
    _check(kind, name, role, workflows)
    if expires_at is not None and expires_at <= now:
        raise InvalidInput("the key would have expired already", hint="Give a time that is still to come.")
    secret = PREFIXES[kind] + _base62(secrets.token_bytes(_BYTES))
    key_id = f"key_{_base62(secrets.token_bytes(12))[-16:]}"
    row = KeyRow(
        key_id=key_id,
        org=scope.org,
        environment=scope.environment,
        kind=kind,
        role=role,
        name=name,
        key_hash=hash_of(secret),
        workflows=_bound(workflows),
        created_at=now,
        created_by=by,
        expires_at=expires_at,
    )
    return row, secret


async def make(
    store: Store,
    kind: str,
    name: str,
    *,
    by: str,
    scope: Scope = DEFAULT,
    role: str | None = None,
    workflows: Sequence[str] | None = None,
    expires_at: int | None = None,
) -> tuple[KeyRow, str]:
    """Issue a key, store its row, and record who made it. For the arguments and errors, see `issue`."""
    row, secret = issue(
        kind, name, now=store.now(), by=by, scope=scope, role=role, workflows=workflows, expires_at=expires_at
    )
    await store.add_key(row, audit_of(row))
    return row, secret


def _check(kind: str, name: str, role: str | None, workflows: Sequence[str] | None) -> None:
    check_text(name, "the name of a key")
    if kind not in PREFIXES:
        raise InvalidInput(f"{kind!r} is no kind of key", hint=f"Kinds: {', '.join(PREFIXES)}.")
    if kind == kinds.ORG and role not in kinds.ROLES:
        problem = "a key of an organisation needs a role" if role is None else f"{role!r} is no role of a key"
        raise InvalidInput(problem, hint=f"Roles: {', '.join(kinds.ROLES)}.")
    if kind != kinds.ORG and role is not None:
        raise InvalidInput(f"a key of kind {kind} has no role", hint="Leave the role out.")
    if kind != kinds.WORKER and workflows is not None:
        raise InvalidInput("only a worker key is bound to workflows", hint="Leave the workflows out.")


def audit_of(row: KeyRow) -> Audit:
    """The entry that tells of a new key."""
    fields = {"key_id": row.key_id, "kind": row.kind, "role": row.role, "name": row.name}
    return Audit("key.create", row.created_by, None, fields, row.scope)


def hash_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def well_formed(text: str) -> bool:
    """Whether a text can be a key at all; one that cannot is refused without asking the database."""
    return _FORM.fullmatch(text) is not None


def _bound(workflows: Sequence[str] | None) -> str | None:
    if workflows is None:
        return None
    if not workflows or len(workflows) > MOST_WORKFLOWS:
        raise InvalidInput(
            f"a worker key is bound to 1 to {MOST_WORKFLOWS:,} workflows, not {len(workflows)}",
            hint="Leave the workflows out for a key that serves any.",
        )
    for one in workflows:
        check_text(one, "the name of a workflow")
    return json.dumps(sorted(set(workflows)), ensure_ascii=False)


def _base62(content: bytes) -> str:
    number, digits = int.from_bytes(content, "big"), []
    for _ in range(_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
