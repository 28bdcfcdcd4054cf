"""Settings: sources and their order, relations, sweeps that cannot be switched off, secrets."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from ironflow.config import SETTINGS, Settings
from ironflow.errors import InvalidSettings

DOCUMENTED = [
    "DATABASE_URL", "PROFILE", "RENEWAL_INTERVAL", "LEASE_TTL", "SESSION_TTL", "RESERVATION_TTL",
    "RECOVERY_INTERVAL", "RECOVERY_GRACE", "RECOVERY_CEILING", "RECOVERY_BATCH",
    "STALE_CLAIM_RECOVERY_INTERVAL",
    "STALE_CLAIM_THRESHOLD", "SUSPECT_AFTER", "WAKER_INTERVAL", "DRAIN_TIMEOUT", "CONCURRENCY", "THREADS",
    "PARKED_INSTANCES", "MAX_PAYLOAD_BYTES",
    "LISTEN_HOST", "LISTEN_PORT", "MAX_API_BODY_BYTES", "API_RATE", "API_BURST", "MAX_STREAMS",
    "METRICS_ADDRESS", "RUN_RETENTION", "LOG_LEVEL", "LOG_FORMAT",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def problems(**arguments: object) -> str:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(**{"env": {}, **arguments})  # type: ignore[arg-type]
    return str(caught.value)


def test_the_table_the_class_and_the_documented_names_agree() -> None:
    assert [setting.env for setting in SETTINGS] == [f"IRONFLOW_{name}" for name in DOCUMENTED]
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert defaults == {setting.field: setting.default for setting in SETTINGS}
    assert all(setting.meaning and setting.unit for setting in SETTINGS)


def test_without_any_source_the_standard_profile_holds() -> None:
    settings = Settings.load(env={})
    assert settings == Settings()
    assert (settings.renewal_interval_ms, settings.lease_ttl_ms, settings.suspect_after_ms) == (
        5_000,
        20_000,
        8_000,
    )


def test_the_conservative_profile_changes_the_timings() -> None:
    settings = Settings.load(env={"IRONFLOW_PROFILE": "Conservative"})
    assert (settings.renewal_interval_ms, settings.lease_ttl_ms, settings.recovery_grace_ms) == (
        30_000,
        90_000,
        30_000,
    )
    assert settings.suspect_after_ms is None
    assert settings.concurrency == 2
    assert dataclasses.asdict(settings) == {setting.field: setting.conservative for setting in SETTINGS}


def test_later_sources_win_file_then_environment_then_arguments(tmp_path: Path) -> None:
    Path("ironflow.toml").write_text(
        'concurrency = 5\nthreads = 5\nlease_ttl = "50s"\nrun_retention = "30d"\n'
    )
    env = {"IRONFLOW_THREADS": "6", "IRONFLOW_LEASE_TTL": "60s", "IRONFLOW_SUSPECT_AFTER": "off"}
    settings = Settings.load(env=env, lease_ttl=70)
    assert (settings.concurrency, settings.threads, settings.lease_ttl_ms) == (5, 6, 70_000)
    assert settings.run_retention_ms == 2_592_000_000
    assert settings.suspect_after_ms is None
    other = tmp_path / "other.toml"
    other.write_text("concurrency = 7")
    assert Settings.load(env={}, file=other).concurrency == 7


def test_the_process_environment_is_the_default_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRONFLOW_THREADS", "3")
    assert Settings.load().threads == 3


def test_arguments_may_be_given_by_attribute_name_and_none_leaves_a_setting_alone() -> None:
    settings = Settings.load(env={}, lease_ttl_ms=45_000, session_ttl=None, suspect_after=False)
    assert (settings.lease_ttl_ms, settings.session_ttl_ms, settings.suspect_after_ms) == (
        45_000,
        20_000,
        None,
    )
    assert "argument lease_ttl_ms" in problems(lease_ttl_ms=-1)


@pytest.mark.parametrize("raw", ["abc", "0", "-5s", "0s", "nan"])
@pytest.mark.parametrize("name", ["RECOVERY_INTERVAL", "STALE_CLAIM_RECOVERY_INTERVAL"])
def test_no_value_of_a_sweep_interval_switches_the_sweep_off(
    name: str, raw: str, caplog: pytest.LogCaptureFixture
) -> None:
    field = f"{name.lower()}_ms"
    settings = Settings.load(env={f"IRONFLOW_{name}": raw})
    assert getattr(settings, field) == getattr(Settings(), field)
    assert "cannot be switched off" in caplog.text
    conservative = Settings.load(env={f"IRONFLOW_{name}": raw, "IRONFLOW_PROFILE": "conservative"})
    assert getattr(conservative, field) in (30_000, 60_000)


def test_a_usable_sweep_interval_is_taken_and_an_empty_one_is_as_good_as_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert Settings.load(env={"IRONFLOW_RECOVERY_INTERVAL": "5s"}).recovery_interval_ms == 5_000
    assert Settings.load(env={"IRONFLOW_RECOVERY_INTERVAL": ""}).recovery_interval_ms == 1_000
    assert not caplog.records


def test_a_mistyped_variable_is_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Settings.load(env={"IRONFLOW_LEASE_TLL": "9s", "IRONFLOW_UNRELATED": "1", "HOME": "x"})
    assert [record.getMessage() for record in caplog.records] == [
        "IRONFLOW_LEASE_TLL is no setting and is ignored; did you mean IRONFLOW_LEASE_TTL?"
    ]


def test_all_unreadable_values_are_reported_together() -> None:
    Path("ironflow.toml").write_text("leese_ttl = 1\nthreads = true\nzzzzzz = 1")
    text = problems(
        env={"IRONFLOW_CONCURRENCY": "many", "IRONFLOW_LEASE_TTL": "-1s"}, log_level="loud", database_url=""
    )
    for part in (
        "did you mean lease_ttl?",
        "zzzzzz in ironflow.toml is no setting: remove it",
        "True is not a whole number",
        "'many' is not a whole number",
        "IRONFLOW_LEASE_TTL: '-1s' is negative",
        "'loud' is none of debug",
        "argument database_url must be text",
    ):
        assert part in text


@pytest.mark.parametrize(("values", "message"), [
    ({"lease_ttl": "14s"}, "lease_ttl (14s) is under three renewals (5s each)"),
    ({"session_ttl": "14s"}, "session_ttl (14s) is under three renewals"),
    ({"suspect_after": "6s"}, "suspect_after (6s) leaves no time to reconnect"),
    ({"suspect_after": "20s"}, "suspect_after (20s) is not below session_ttl"),
    ({"stale_claim_threshold": "5s"}, "stale_claim_threshold (5s) is not above renewal_interval"),
    ({"recovery_interval": "21s"}, "recovery_interval (21s) is above lease_ttl"),
    ({"threads": 0}, "threads is 0: it must be at least 1"),
    ({"renewal_interval": 0}, "renewal_interval is 0: it must be at least 1 ms"),
])  # fmt: skip
def test_values_that_contradict_each_other_are_refused_at_start(
    values: dict[str, object], message: str
) -> None:
    assert message in problems(**values)


def test_no_inconsistent_settings_can_be_made_directly_either() -> None:
    with pytest.raises(InvalidSettings, match="under three renewals"):
        Settings(lease_ttl_ms=1)
    with pytest.raises(InvalidSettings, match="choose one of"):
        Settings(log_format="xml")
    assert Settings.load(env={}, database_url=" postgresql://h/db ").database_url == "postgresql://h/db"
    assert "argument leese_ttl is no setting: did you mean lease_ttl?" in problems(leese_ttl=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().threads = 3  # type: ignore[misc]


def test_a_missing_or_broken_file_is_an_error_only_if_it_was_asked_for(tmp_path: Path) -> None:
    assert Settings.load(env={}) == Settings()
    assert "does not exist" in problems(file=tmp_path / "none.toml")
    Path("ironflow.toml").write_bytes(b"a = [")
    assert "cannot be read" in problems()
    Path("ironflow.toml").write_bytes(b"\xff")
    assert "cannot be read" in problems()


def test_the_password_of_the_database_is_not_shown() -> None:
    shown = repr(Settings(database_url="postgresql://u:secret@h:5/db"))
    assert "postgresql://u:***@h:5/db" in shown
    assert "secret" not in shown
