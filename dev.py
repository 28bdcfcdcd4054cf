#!/usr/bin/env python3
"""The development commands of Ironflow: `python3 dev.py test` in a fresh clone is all that is needed.

Owns the folder `.venv`: made once from the hashed `requirements.lock`, brought up to date when the lock, the
project file or the interpreter changes, and left alone otherwise, so a second call starts at once. It uses
the standard library alone, and only syntax that an old Python can parse far enough to print the message
below.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "dev.py needs Python 3.11 or newer and was started with %d.%d. Run it with a newer interpreter, for "
        "example: python3.11 dev.py %s" % (sys.version_info[0], sys.version_info[1], " ".join(sys.argv[1:]))
    )

import hashlib
import importlib.util
import os
import shutil
import subprocess
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
RUNNING = f"{sys.version_info[0]}.{sys.version_info[1]}"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
STAMP = VENV / ".ironflow-stamp"

# At least two, so that a test that depends on another one's leftovers is found on any machine.
WORKERS = str(max(2, min(os.cpu_count() or 2, 8)))

LINT = ["-m", "ruff", "check", "."]
TYPES = ["-m", "mypy", "--strict", "src"]

# name: (what it does, commands run one after the other with .venv's Python). Arguments given by the person go
# to the last command. A new command is a new line.
COMMANDS = {
    "demo": ("see a run survive the death of its worker", [["-m", "ironflow", "demo"]]),
    "test": (
        "lint, types and the whole suite; with arguments, pytest alone with these",
        [LINT, TYPES, ["-m", "pytest", "-n", WORKERS, "--dist", "worksteal"]],
    ),
    "check": ("lint and types only", [LINT, TYPES]),
    "bench": ("measure against the floor of this machine's disk and database", [["bench/run.py"]]),
    "soak": ("a long run with workers killed all the time, counts checked", [["tests/soak.py"]]),
}


def usage():
    """The help text, made from the table."""
    lines = ["usage: python3 dev.py COMMAND [ARGUMENT...]", ""]
    lines += [f"  {name:<6} {what}" for name, (what, _) in COMMANDS.items()]
    return "\n".join(lines)


def plan(name, extra):
    """The argument lists to run for a command.

    `test` with arguments means a person is at work on something: then pytest runs alone and in one process,
    so that `-k`, `--pdb` and a single file start at once. Everywhere else arguments go to the last command.
    """
    commands = COMMANDS[name][1]
    if name == "test" and extra:
        return [["-m", "pytest", *extra]]
    return [*commands[:-1], [*commands[-1], *extra]]


def fingerprint():
    """What the environment was made from; when it changes, the packages are installed again."""
    made_from = LOCK.read_bytes() + (ROOT / "pyproject.toml").read_bytes() + RUNNING.encode()
    return hashlib.sha256(made_from).hexdigest()


def version_in_venv():
    """'3.11' for an environment made by Python 3.11, None when there is none that can be used."""
    try:
        lines = (VENV / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    version = found.get("version") or found.get("version_info") or ""  # venv writes the first, uv the second
    return ".".join(version.split(".")[:2]) if PYTHON.exists() else None


def installer():
    """The command that installs packages into `.venv`, which it makes when there is none for this Python.

    Taken in this order: uv when it is on PATH (fastest); the pip inside `.venv`; the pip of the running
    Python told to install into `.venv`, for systems that ship pip but not the module that copies it there.
    """
    uv = shutil.which("uv")
    fresh = version_in_venv() != RUNNING
    if uv:
        if fresh:
            run([uv, "venv", "--quiet", "--no-config", "--clear", "--python", sys.executable, str(VENV)])
        return [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    bundled = importlib.util.find_spec("ensurepip") is not None
    pip = importlib.util.find_spec("pip") is not None
    if fresh:
        if not bundled and not pip:
            sys.exit(missing_pip())
        print(f"making {VENV.name} with Python {RUNNING}", flush=True)
        venv.create(VENV, with_pip=bundled, clear=True, symlinks=os.name != "nt")
    own = subprocess.run([str(PYTHON), "-c", "import pip"], stderr=subprocess.DEVNULL).returncode == 0
    if not own and not pip:
        sys.exit(missing_pip())
    base = [str(PYTHON), "-m", "pip"] if own else [sys.executable, "-m", "pip", "--python", str(PYTHON)]
    return [*base, "install", "--quiet", "--disable-pip-version-check", "--no-input"]


def missing_pip():
    """One sentence that names what to install, instead of the traceback of a half-made environment."""
    return (
        "dev.py cannot make a virtual environment: this Python has neither ensurepip nor pip. On Debian and "
        f"Ubuntu run `apt-get install python{RUNNING}-venv`; elsewhere install pip for Python {RUNNING}, "
        "or put `uv` on PATH."
    )


def run(command):
    """Run one command in the project's folder; end with its exit code when it fails."""
    code = subprocess.call(command, cwd=str(ROOT))
    if code:
        sys.exit(code if code > 0 else 128 - code)


def ensure_environment():
    """Bring `.venv` to what the lock says; do nothing when the stamp tells that it is already so."""
    want = fingerprint()
    try:
        if PYTHON.exists() and STAMP.read_text(encoding="utf-8") == want:
            return
    except OSError:
        pass
    os.environ.setdefault("PIP_ROOT_USER_ACTION", "ignore")  # root may fill its own .venv; pip would warn
    install = installer()
    print(f"installing {LOCK.name} into {VENV.name}", flush=True)
    run([*install, "--require-hashes", "-r", str(LOCK)])
    # The build backend is in the lock: with isolation pip would fetch another, unlocked one.
    run([*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)])
    STAMP.write_text(want, encoding="utf-8")


def main(arguments):
    """Entry: `arguments` are the words after `dev.py`. Returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    name, extra = arguments[0], arguments[1:]
    if name not in COMMANDS:
        print(f"dev.py has no command {name!r}.\n\n{usage()}", file=sys.stderr)
        return 2
    ensure_environment()
    *first, last = plan(name, extra)
    for command in first:
        print("+ python " + " ".join(command), flush=True)
        run([str(PYTHON), *command])
    return finish([str(PYTHON), *last])


def finish(command):
    """Become the last command, so that signals and the exit code are its own (on Windows: wait for it)."""
    os.chdir(str(ROOT))
    sys.stdout.flush()
    if os.name == "nt":
        return subprocess.call(command)
    os.execv(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
