"""The files of docs/deploy fit what the code has: commands, options, variables, ports, paths, and times.

The tools that own these forms (`systemd-analyze`, `haproxy`, `docker-compose`, `helm`) check them, too, where they are
installed.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ironflow.cli.app import command as whole_command
from ironflow.client.address import KEY_VARIABLE, SERVER_VARIABLE
from ironflow.config import SETTINGS, Settings
from ironflow.duration import to_ms
from ironflow.server.access import Access
from ironflow.server.app import create_app
from ironflow.server.node import Node
from ironflow.server.serving import KEEP_ALIVE_S
from ironflow.server.sse import KEEP_ALIVE_S as COMMENT_S
from ironflow.server.worker_routes import LONGEST_POLL_MS
from ironflow.store import connect

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "docs" / "deploy"
CHART = DEPLOY / "chart"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TEXTS = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file() and path.suffix != ".json"]

PORT = Settings().listen_port
DRAIN_S = Settings().drain_timeout_ms / 1000
#: What a supervisor, and a worker, may take beyond the drain limit.
BEYOND_S = 2


def name(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


def accepted(words: list[str]) -> dict[str, Any]:
    """The options of a command line as the command understands them. Raises a usage error for one that it does not."""
    command = whole_command()
    while hasattr(command, "commands"):
        word, *words = words
        command = command.commands[word]
    with command.make_context(command.name, list(words)) as context:
        return dict(context.params)


def seconds(text: str) -> float:
    return to_ms(text, name="a time of the file") / 1000


@pytest.mark.parametrize("path", TEXTS, ids=name)
def test_every_variable_is_one_that_is_read(path: Path) -> None:
    known = {setting.env for setting in SETTINGS} | {SERVER_VARIABLE, KEY_VARIABLE}
    found = set(re.findall(r"\bIRONFLOW_[A-Z_]+\b", path.read_text(encoding="utf-8")))
    assert found - known == set()


@pytest.mark.parametrize("path", [DEPLOY / "README.md", CHART / "templates" / "NOTES.txt"], ids=name)
def test_every_command_that_is_told_can_be_typed(path: Path) -> None:
    found = re.findall(r"(?:ironflow|node-1) ((?:apikey|runs|serve|worker) [^>\n]*)", path.read_text(encoding="utf-8"))
    assert found
    for line in found:
        accepted(shlex.split(line))


# ---- systemd


def unit(path: Path) -> dict[str, list[str]]:
    """The settings of a unit, each with all of its values."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_a_unit_starts_what_can_be_started_and_waits_for_its_end(path: Path) -> None:
    settings = unit(path)
    [line] = settings["ExecStart"]
    program, *words = shlex.split(line)
    assert Path(program).name == "ironflow"
    accepted(words)
    if words[0] == "worker":
        variables = dict(one.split("=", 1) for one in shlex.split(settings["Environment"][0]))
        drain = seconds(variables["IRONFLOW_DRAIN_TIMEOUT"])
        assert int(settings["TimeoutStopSec"][0]) > drain + BEYOND_S
        assert settings["KillMode"] == ["mixed"]  # a second signal to the children would mean "now"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    program = shutil.which("true")
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("/usr/local/lib/ironflow/bin/ironflow", str(program))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", *[str(tmp_path / path.name) for path in UNITS]],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    told = [line for line in done.stderr.splitlines() if any(path.name in line for path in UNITS)]
    assert (done.returncode, told) == (0, [])


# ---- Compose and its balancer


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return found


def test_compose_gives_commands_that_can_be_typed() -> None:
    services = compose()["services"]
    commands = {name: accepted(service["command"]) for name, service in services.items() if "command" in service}
    assert set(commands) == {"node-1", "node-2", "worker"}
    assert commands["worker"]["server"] == [f"http://balancer:{PORT}"]
    assert commands["worker"]["key_file"] == "/run/secrets/worker_key"


def test_compose_names_services_files_and_secrets_that_are_there() -> None:
    whole = compose()
    services = whole["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert set(service.get("secrets", ())) <= set(whole["secrets"])
        build = service.get("build")
        if build is not None:
            context = DEPLOY / build["context"]
            assert context.resolve() == ROOT
            assert (context / build["dockerfile"]).is_file()
    assert (DEPLOY / "haproxy.cfg").is_file()
    assert "../../examples/ingest.py" in services["worker"]["volumes"][0]
    assert (ROOT / "examples" / "ingest.py").is_file()


def test_compose_waits_for_the_end_of_what_it_stops() -> None:
    services = compose()["services"]
    drain = seconds(services["worker"]["environment"]["IRONFLOW_DRAIN_TIMEOUT"])
    assert seconds(services["worker"]["stop_grace_period"]) > drain + BEYOND_S
    assert seconds(services["node-1"]["stop_grace_period"]) > BEYOND_S


def test_the_port_of_the_host_is_not_open_to_the_network() -> None:
    assert compose()["services"]["balancer"]["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_understands_the_file(tmp_path: Path) -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    # The first generation of the tool knows everything in it but the name of the project.
    (tmp_path / "compose.yaml").write_text(re.sub(r"(?m)^name: .*\n", "", text), encoding="utf-8")
    words = ["docker-compose", "--project-directory", str(DEPLOY), "-f", str(tmp_path / "compose.yaml"), "config"]
    done = subprocess.run(
        words, env={"PATH": "/usr/bin:/bin:/usr/local/bin", "POSTGRES_PASSWORD": "x"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_balancer_waits_longer_than_any_silence_of_a_node() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text(encoding="utf-8")
    times = dict(re.findall(r"timeout (\S+) +(\d+s)", text))
    silence = max(LONGEST_POLL_MS / 1000, COMMENT_S)
    assert min(seconds(times["client"]), seconds(times["server"])) > silence + 5
    assert seconds(times["http-keep-alive"]) < KEEP_ALIVE_S
    assert re.findall(r"(?m)^    server (\S+) (\S+)", text) == [
        (node, f"{node}:{PORT}") for node in ("node-1", "node-2")
    ]
    assert f"bind :{PORT}" in text


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_finds_nothing_wrong_with_its_file() -> None:
    done = subprocess.run(
        ["haproxy", "-c", "-f", str(DEPLOY / "haproxy.cfg")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (0, 2), done.stderr  # 2: the names of the nodes mean nothing here
    assert "ALERT" not in done.stderr


# ---- what nodes answer


async def test_the_paths_that_are_asked_are_answered(sqlite_url: str) -> None:
    store = await connect(sqlite_url)
    settings = Settings()
    node = Node(store, settings)
    try:
        known = {getattr(route, "path", "") for route in create_app(node, Access(store, settings)).routes}
    finally:
        await node.stop()
        await store.close()
    asked = set(re.findall(r"path: (/\w+)", (CHART / "templates" / "node-deployment.yaml").read_text()))
    asked |= set(re.findall(r"option httpchk GET (/\w+)", (DEPLOY / "haproxy.cfg").read_text()))
    asked |= set(re.findall(rf"127\.0\.0\.1:{PORT}(/\w+)", (DEPLOY / "compose.yaml").read_text()))
    assert asked == {"/health", "/ready"}
    assert asked <= known


# ---- the image


def test_the_image_is_made_of_files_and_extras_that_there_are() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = {word for line in re.findall(r"(?m)^COPY (.*) \S+$", text) for word in line.split()}
    assert all((ROOT / word).exists() for word in copied)
    for link in (path for path in (ROOT / "src").rglob("*") if path.is_symlink()):
        assert link.resolve().relative_to(ROOT).parts[0] in copied  # the package is incomplete without it
    [extras] = re.findall(r"/src\[([\w,]+)\]", text)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"(?m)^{extra} = \[", project) for extra in extras.split(","))
    assert f"EXPOSE {PORT}" in text
    accepted(yaml.safe_load(text.rpartition("CMD ")[2]))


# ---- the chart


def values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def test_the_chart_takes_the_port_and_the_times_of_the_code() -> None:
    found = values()
    assert found["nodes"]["port"] == found["service"]["port"] == PORT
    nodes = found["nodes"]
    assert nodes["terminationGracePeriodSeconds"] > nodes["preStopSeconds"] + BEYOND_S
    workers = (CHART / "templates" / "workers.yaml").read_text(encoding="utf-8")
    assert f".drainSeconds | default {DRAIN_S:.0f})" in workers
    [more] = re.findall(r"terminationGracePeriodSeconds: \{\{ add \$drain (\d+) \}\}", workers)
    assert int(more) > BEYOND_S


def test_the_options_that_the_chart_gives_exist() -> None:
    options = {name for one in ("serve", "worker") for name in _options(one)}
    for path in sorted((CHART / "templates").iterdir()):
        used = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8")))
        assert used <= options | _options("apikey", "create"), path.name


def _options(*words: str) -> set[str]:
    command: Any = whole_command()
    for word in words:
        command = command.commands[word]
    return {option for parameter in command.params for option in parameter.opts}


needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


def helm(*words: str) -> str:
    done = subprocess.run(["helm", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_helm
@pytest.mark.parametrize("files", [[], ["-f", str(CHART / "ci-values.yaml")]], ids=["defaults", "everything"])
def test_helm_finds_nothing_wrong_with_the_chart(files: list[str]) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *files)


@needs_helm
def test_what_the_chart_renders_fits_the_commands_and_their_ends() -> None:
    rendered = list(yaml.safe_load_all(helm("template", "try", str(CHART), "-f", str(CHART / "ci-values.yaml"))))
    assert sorted(one["kind"] for one in rendered) == [*["Deployment"] * 3, *["PodDisruptionBudget"] * 3, "Service"]
    [service] = [one for one in rendered if one["kind"] == "Service"]
    known = {setting.env for setting in SETTINGS} | {"PYTHONHASHSEED"}
    for pod, container in _containers(rendered):
        options = accepted(container["args"])
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert set(variables) <= known
        grace = pod["terminationGracePeriodSeconds"]
        if container["name"] == "worker":
            assert options["server"] == [f"http://{service['metadata']['name']}:{PORT}"]
            assert grace > seconds(variables["IRONFLOW_DRAIN_TIMEOUT"] or "") + BEYOND_S
        else:
            assert grace > int(container["lifecycle"]["preStop"]["exec"]["command"][1]) + BEYOND_S


def _containers(rendered: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for one in rendered:
        if one["kind"] == "Deployment":
            pod = one["spec"]["template"]["spec"]
            assert (
                one["spec"]["selector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()
            )
            for container in pod["containers"]:
                yield pod, container
