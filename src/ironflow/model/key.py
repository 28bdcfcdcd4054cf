"""A key as the database keeps it: whose it is, what it may do, and the hash of its secret.

The secret itself is shown once, when the key is made, and never stored: reading the database gives no access.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ironflow.model.scope import Scope

#: Kinds: of an organisation's people and programs, of the platform's operators, of workers.
ORG, PLATFORM, WORKER = "org", "platform", "worker"
KINDS = (ORG, PLATFORM, WORKER)
#: Roles of an organisation's key, each with the rights of those after it.
ADMIN, DEVELOPER, VIEWER = "admin", "developer", "viewer"
ROLES = (ADMIN, DEVELOPER, VIEWER)


@dataclass(slots=True)
class KeyRow:
    """One key. Times in milliseconds since 1970.

    `role` is an organisation's key's only. `workflows`: the names (JSON) that a worker's key is bound to; None: any.
    """

    key_id: str
    org: str
    environment: str
    kind: str
    role: str | None
    name: str
    key_hash: str = field(repr=False)
    workflows: str | None
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    last_used_at: int | None = None

    @property
    def scope(self) -> Scope:
        """Whose it is."""
        return Scope(self.org, self.environment)

    def usable(self, now: int) -> bool:
        """Whether it opens anything at this time: neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)
