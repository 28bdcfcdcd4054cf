"""Settings: what they are, where they come from, and which of them fit together.

One table (`SETTINGS`) names every setting with both profiles' values, its unit and its meaning; the
`Settings` class, the environment variables, the keys of `ironflow.toml` and the reference in the docs all
follow it. Later sources win: defaults, profile, TOML file, environment, arguments. A `Settings` that exists
is consistent, and it never changes: relations (a lease that outlives several renewals, …) are checked once,
at start, and all breaches are reported together, because finding them one restart at a time is what makes
people switch checks off.

The intervals of the two recovery sweeps are the exception to "wrong values are refused": whatever they hold,
the sweeps run. A recovery loop that a typing mistake can switch off is noticed only on the day it is needed.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from ironflow.address import redact_url
from ironflow.duration import format_ms, to_ms
from ironflow.errors import InvalidDuration, InvalidSettings

__all__ = ["SETTINGS", "Setting", "Settings"]

RECONNECT_MS: Final = 1_000
"""How long a worker needs to open its liveness stream again after a break."""

log = logging.getLogger("ironflow.config")

_Kind = Literal["duration", "sweep", "optional", "count", "text", "choice"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the reference table.

    `kind` says how a value is read: `duration` (milliseconds inside), `sweep` (a duration that can never be
    switched off), `optional` (a duration, or "off"), `count` (a whole number), `text`, `choice`.
    """

    name: str
    kind: _Kind
    default: Any
    conservative: Any
    unit: str
    meaning: str
    least: int = 0
    choices: tuple[str, ...] = ()

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"IRONFLOW_{self.name.upper()}"

    @property
    def field(self) -> str:
        """The attribute of `Settings`; durations say their unit."""
        return f"{self.name}_ms" if self.kind in ("duration", "sweep", "optional") else self.name


def _time(
    name: str, default: int, conservative: int, meaning: str, *, kind: _Kind = "duration", least: int = 1
) -> Setting:
    return Setting(name, kind, default, conservative, "ms", meaning, least)


SETTINGS: Final = (
    Setting("database_url", "text", "sqlite:///ironflow.db", "sqlite:///ironflow.db", "URL",
            "where runs are stored: sqlite:///FILE or postgresql://…"),
    Setting("profile", "choice", "standard", "conservative", "name",
            "the set of defaults to start from", choices=("standard", "conservative")),
    _time("renewal_interval", 5_000, 30_000, "how often a worker renews its leases (its heartbeat)"),
    _time("lease_ttl", 20_000, 90_000, "how long a lease lasts without renewal"),
    _time("session_ttl", 20_000, 90_000, "how long a silent worker counts as alive"),
    _time("reservation_ttl", 10_000, 30_000, "how long a handed-out slot waits for its segment to start"),
    _time("recovery_interval", 1_000, 30_000, "how often expired leases, reservations, sessions are swept",
          kind="sweep"),
    _time("recovery_grace", 0, 30_000, "how long a recovered run waits before it may start again", least=0),
    Setting("recovery_ceiling", "count", 10, 10, "recoveries",
            "consecutive recoveries a run may have without completing a step", 1),
    Setting("recovery_batch", "count", 100, 100, "runs", "runs one transaction of a sweep recovers", 1),
    _time("stale_claim_recovery_interval", 5_000, 60_000, "how often abandoned claims on waits are swept",
          kind="sweep"),
    _time("stale_claim_threshold", 45_000, 120_000, "how old a claim must be to count as abandoned"),
    Setting("suspect_after", "optional", 8_000, None, "ms",
            "how long a worker over HTTP may be cut off before it is replaced; off: only proof or the clock count", 1),
    _time("waker_interval", 10_000, 10_000, "longest pause of the waker when no due time is known"),
    _time("drain_timeout", 30_000, 30_000, "how long a stopping worker lets its steps finish", least=0),
    Setting("concurrency", "count", 100, 2, "runs", "runs one worker executes at once", 1),
    Setting("threads", "count", 8, 8, "threads",
            "threads of one worker, for steps that are plain functions", 1),
    Setting("parked_instances", "count", 1_000, 1_000, "instances",
            "waiting runs kept in memory, so that waking them needs no replay", 0),
    Setting("max_payload_bytes", "count", 2_097_152, 2_097_152, "bytes",
            "largest encoded input, argument list or result", 1_024),
    # Not IRONFLOW_PORT: Kubernetes sets that to an address in every container beside a service named `ironflow`.
    Setting("listen_host", "text", "127.0.0.1", "127.0.0.1", "address",
            "where `ironflow serve` listens; 0.0.0.0 for every network this host is on"),
    Setting("listen_port", "count", 9_123, 9_123, "port",
            "the port on which `ironflow serve` listens; 0: any free one", 0),
    Setting("max_api_body_bytes", "count", 2_097_152, 2_097_152, "bytes",
            "largest body of a request to the HTTP API; workers' routes take any value of the largest size", 1_024),
    Setting("api_rate", "count", 2_000, 2_000, "requests/s",
            "requests a second that one API key may make at one node in the long run; 0: as many as it likes", 0),
    Setting("api_burst", "count", 4_000, 4_000, "requests",
            "requests one API key may make at once, before its rate holds it back", 1),
    Setting("max_streams", "count", 1_000, 1_000, "streams",
            "streams (followed runs, workers' liveness) one API key may hold open at one node; 0: any number", 0),
    Setting("metrics_address", "text", None, None, "HOST:PORT",
            "where `ironflow serve` and `ironflow worker` show their metrics without a key; nowhere if it is not set"),
    Setting("run_retention", "optional", None, None, "ms",
            "how long ended runs are kept; then each is deleted with its journal and its keys; off: for ever", 1_000),
    Setting("log_level", "choice", "info", "info", "name", "least severe log records that are shown",
            choices=("debug", "info", "warning", "error", "critical")),
    Setting("log_format", "choice", "text", "text", "name", "how log records are written",
            choices=("text", "json")),
)  # fmt: skip
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_KEY: Final = _BY_NAME | {setting.field: setting for setting in SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """Everything that can be configured. `SETTINGS` says what each name means; durations are milliseconds.

    Constructing it directly checks the relations too, so that no inconsistent set can exist.

    Raises:
        InvalidSettings: values contradict each other; every breach is listed with what to do.
    """

    database_url: str = "sqlite:///ironflow.db"
    profile: str = "standard"
    renewal_interval_ms: int = 5_000
    lease_ttl_ms: int = 20_000
    session_ttl_ms: int = 20_000
    reservation_ttl_ms: int = 10_000
    recovery_interval_ms: int = 1_000
    recovery_grace_ms: int = 0
    recovery_ceiling: int = 10
    recovery_batch: int = 100
    stale_claim_recovery_interval_ms: int = 5_000
    stale_claim_threshold_ms: int = 45_000
    suspect_after_ms: int | None = 8_000
    waker_interval_ms: int = 10_000
    drain_timeout_ms: int = 30_000
    concurrency: int = 100
    threads: int = 8
    parked_instances: int = 1_000
    max_payload_bytes: int = 2_097_152
    listen_host: str = "127.0.0.1"
    listen_port: int = 9_123
    max_api_body_bytes: int = 2_097_152
    api_rate: int = 2_000
    api_burst: int = 4_000
    max_streams: int = 1_000
    metrics_address: str | None = None
    run_retention_ms: int | None = None
    log_level: str = "info"
    log_format: str = "text"

    def __post_init__(self) -> None:
        problems = [*_range_problems(self), *_relation_problems(self)]
        if problems:
            raise InvalidSettings(problems)

    @classmethod
    def load(
        cls,
        *,
        env: Mapping[str, str] | None = None,
        file: str | os.PathLike[str] | None = None,
        **overrides: Any,
    ) -> Settings:
        """Read the settings from all sources.

        Args:
            env: environment variables; None means the process's own.
            file: a TOML file; None means `ironflow.toml` in the current directory, if there is one.
            overrides: by setting name (`lease_ttl="30s"`) or attribute name (`lease_ttl_ms=30_000`); None
                leaves a setting alone, so that command-line options can be passed on as they are.

        Raises:
            InvalidSettings: a value cannot be read, a name is unknown, or values contradict each other.
        """
        problems: list[str] = []
        given: dict[str, Any] = {}
        for source in (_from_file(file, problems), _from_env(os.environ if env is None else env),
                       _from_overrides(overrides, problems)):  # fmt: skip
            for setting, raw, origin in source:
                try:
                    given[setting.name] = _READERS[setting.kind](setting, raw, origin)
                except ValueError as error:
                    problems.append(str(error))
        profile = given.get("profile", "standard")
        values = {s.field: s.conservative if profile == "conservative" else s.default for s in SETTINGS}
        # An unusable sweep interval gives way to the profile's, and the profile is known only here.
        values |= {_BY_NAME[name].field: value for name, value in given.items() if value is not _PROFILE}
        if problems:
            raise InvalidSettings(problems)
        return cls(**values)

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={_shown(f.name, getattr(self, f.name))!r}" for f in fields(self))
        return f"Settings({shown})"


# ---- reading ---------------------------------------------------------------------------------------------

_Found = Iterator[tuple[Setting, Any, str]]
_PROFILE: Final = object()


def _from_file(file: str | os.PathLike[str] | None, problems: list[str]) -> _Found:
    path = Path("ironflow.toml" if file is None else file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file is not None:
            problems.append(f"the settings file {path} does not exist: create it, or leave the argument out")
        return
    except (OSError, ValueError) as error:  # a TOML error is a ValueError, and so is wrong UTF-8
        problems.append(f"the settings file {path} cannot be read: {error}")
        return
    for key, raw in content.items():
        if key in _BY_NAME:
            yield _BY_NAME[key], raw, f"{key} in {path}"
        else:
            problems.append(_unknown(f"{key} in {path}", key))


def _from_env(env: Mapping[str, str]) -> _Found:
    for setting in SETTINGS:
        raw = env.get(setting.env, "")
        if raw.strip():  # an empty variable is how shells and compose files say "not set"
            yield setting, raw, setting.env
    for name in env:
        # Other IRONFLOW_ variables exist (tests, supervisors), so only what looks like a slip is mentioned.
        key = name.removeprefix("IRONFLOW_").lower()
        if name.startswith("IRONFLOW_") and key not in _BY_NAME:
            close = difflib.get_close_matches(key, _BY_NAME, 1, cutoff=0.85)
            if close:
                meant = _BY_NAME[close[0]].env
                log.warning("%s is no setting and is ignored; did you mean %s?", name, meant)


def _from_overrides(overrides: Mapping[str, Any], problems: list[str]) -> _Found:
    for key, raw in overrides.items():
        setting = _BY_KEY.get(key)
        if setting is None:
            problems.append(_unknown(f"argument {key}", key))
        elif raw is not None:
            in_ms = key != setting.name and isinstance(raw, int)
            yield setting, f"{raw}ms" if in_ms and raw >= 0 else raw, f"argument {key}"


def _unknown(origin: str, key: str) -> str:
    close = difflib.get_close_matches(key, _BY_NAME, 1)
    return f"{origin} is no setting" + (f": did you mean {close[0]}?" if close else ": remove it")


def _read_duration(setting: Setting, raw: Any, origin: str) -> int:
    try:
        return to_ms(raw, name=origin)
    except InvalidDuration as error:
        raise ValueError(str(error)) from None


def _read_sweep(setting: Setting, raw: Any, origin: str) -> Any:
    try:
        interval = to_ms(raw, name=origin)
    except InvalidDuration:
        interval = 0
    if interval > 0:
        return interval
    log.warning(
        "%s: %r is no usable interval; the default is used (%s, or %s in profile conservative), "
        "because this sweep cannot be switched off",
        origin, raw, format_ms(setting.default), format_ms(setting.conservative),
    )  # fmt: skip
    return _PROFILE


def _read_optional(setting: Setting, raw: Any, origin: str) -> int | None:
    if raw is False or (isinstance(raw, str) and raw.strip().lower() in ("off", "none", "never")):
        return None
    return _read_duration(setting, raw, origin)


def _read_count(setting: Setting, raw: Any, origin: str) -> int:
    if isinstance(raw, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", raw, re.ASCII):
        return int(raw)
    if type(raw) is int:  # not bool: `threads = true` is a mistake
        return raw
    raise ValueError(f"{origin}: {raw!r} is not a whole number; give a count of {setting.unit}")


def _read_text(setting: Setting, raw: Any, origin: str) -> str:
    if isinstance(raw, str) and raw.strip():
        return raw.strip()
    raise ValueError(f"{origin} must be text; give {setting.meaning}")


def _read_choice(setting: Setting, raw: Any, origin: str) -> str:
    if isinstance(raw, str) and raw.strip().lower() in setting.choices:
        return raw.strip().lower()
    raise ValueError(f"{origin}: {raw!r} is none of {', '.join(setting.choices)}")


_READERS: Final[dict[_Kind, Callable[[Setting, Any, str], Any]]] = {
    "duration": _read_duration,
    "sweep": _read_sweep,
    "optional": _read_optional,
    "count": _read_count,
    "text": _read_text,
    "choice": _read_choice,
}


# ---- checking --------------------------------------------------------------------------------------------


def _range_problems(settings: Settings) -> Iterator[str]:
    for setting in SETTINGS:
        value = getattr(settings, setting.field)
        if setting.choices:
            if value not in setting.choices:
                yield f"{setting.name} is {value!r}: choose one of {', '.join(setting.choices)}"
        elif setting.kind != "text" and value is not None and value < setting.least:
            unit = "" if setting.kind == "count" else f" {setting.unit}"  # of a count, its name says what it counts
            yield f"{setting.name} is {value}: it must be at least {setting.least}{unit}"


def _relation_problems(s: Settings) -> Iterator[str]:
    """Breaking one of these makes live workers look dead, or dead ones live; each message says how."""
    beat = format_ms(s.renewal_interval_ms)
    for name, ttl in (("lease_ttl", s.lease_ttl_ms), ("session_ttl", s.session_ttl_ms)):
        if ttl < 3 * s.renewal_interval_ms:
            yield (
                f"{name} ({format_ms(ttl)}) is under three renewals ({beat} each), so one lost heartbeat "
                f"would take runs from a live worker: raise it to {format_ms(3 * s.renewal_interval_ms)}"
            )
    if s.stale_claim_threshold_ms <= s.renewal_interval_ms:
        yield (
            f"stale_claim_threshold ({format_ms(s.stale_claim_threshold_ms)}) is not above renewal_interval "
            f"({beat}), so claims of live nodes would count as abandoned: raise it"
        )
    if s.recovery_interval_ms > s.lease_ttl_ms:
        yield (
            f"recovery_interval ({format_ms(s.recovery_interval_ms)}) is above lease_ttl "
            f"({format_ms(s.lease_ttl_ms)}), so dead workers would be noticed too late: lower it"
        )
    if s.suspect_after_ms is not None:
        soonest = s.renewal_interval_ms + RECONNECT_MS
        if s.suspect_after_ms <= soonest:
            yield (
                f"suspect_after ({format_ms(s.suspect_after_ms)}) leaves no time to reconnect and renew "
                f"({format_ms(soonest)}), so a short network break would look like a death: raise it, "
                "or set it to off"
            )
        elif s.suspect_after_ms >= s.session_ttl_ms:
            yield (
                f"suspect_after ({format_ms(s.suspect_after_ms)}) is not below session_ttl "
                f"({format_ms(s.session_ttl_ms)}), so it would never act: lower it, or set it to off"
            )


def _shown(name: str, value: Any) -> Any:
    return redact_url(value) if name == "database_url" else value
