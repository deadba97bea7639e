# _provenance.py - facts about a Python program, by which a diff tells two programs apart.
#
# build.binary is a hash of the program's own sources and of the versions of the packages that it
# imports. Two runs of one program with one configuration and different bits are therefore reported
# as nondeterministic, and two runs of a program that was edited in between as different.
# SPDX-License-Identifier: Apache-2.0
"""Facts about the running Python program."""
from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import warnings
from typing import Any, Callable, Optional

from invar._library import one_line
from invar.hashing import hash_bytes

Facts = dict[tuple[str, str], str]

# Environment variables that change the sums of libraries, or the order of sets.
VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
             "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")

# Settings of torch that do the same: the fact, and the function that returns it.
TORCH: dict[str, Callable[[Any], Any]] = {
    "threads": lambda torch: torch.get_num_threads(),
    "cpu": lambda torch: torch.backends.cpu.get_cpu_capability(),
    "cuda": lambda torch: torch.version.cuda,
    "cudnn": lambda torch: torch.backends.cudnn.version(),
    "cudnn_benchmark": lambda torch: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda torch: torch.backends.cudnn.deterministic,
    "cudnn_tf32": lambda torch: torch.backends.cudnn.allow_tf32,
    "default_dtype": lambda torch: torch.get_default_dtype(),
    "deterministic": lambda torch: torch.are_deterministic_algorithms_enabled(),
    "matmul_precision": lambda torch: torch.get_float32_matmul_precision(),
    "matmul_tf32": lambda torch: torch.backends.cuda.matmul.allow_tf32,
}


def _own_files() -> dict[str, str]:
    """Returns, by module, the files of modules that belong neither to Python nor to an installed
    package."""
    others = {os.path.realpath(path) for path in sysconfig.get_paths().values() if path}
    others.add(os.path.dirname(os.path.realpath(__file__)))
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not path or not path.endswith(".py"):
            continue
        path = os.path.realpath(path)
        if not any(path.startswith(other + os.sep) for other in others):
            found[name] = path
    return found


def _versions() -> dict[str, str]:
    """Returns the versions of the installed packages that are imported."""
    tops = {name.partition(".")[0] for name in sys.modules}
    found = {}
    for top, names in importlib.metadata.packages_distributions().items():
        if top in tops:
            found.update({name: importlib.metadata.version(name) for name in names})
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _git(folder: str, *arguments: str) -> Optional[str]:
    try:
        result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True,
                                timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _commit(script: Optional[str]) -> Facts:
    """Returns the commit that the script was checked out from, and the uncommitted changes."""
    folder = os.path.dirname(script) if script else None
    commit = _git(folder, "rev-parse", "HEAD") if folder else None
    if not folder or not commit:
        return {("build", "dirty"): "unknown"}
    status = _git(folder, "status", "--porcelain")
    if status is None:
        dirty = "unknown"
    elif not status:
        dirty = "clean"
    else:
        marks = {line[:2] for line in status.splitlines()}
        dirty = "untracked" if marks == {"??"} else "modified"
    return {("build", "commit"): commit, ("build", "dirty"): dirty}


def _torch() -> Facts:
    """Returns how torch computes, if it is imported. Reading this does not initialize CUDA."""
    torch = sys.modules.get("torch")
    found: Facts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some settings are deprecated in some versions
        for key, ask in TORCH.items() if torch else ():
            try:
                value = ask(torch)
            except Exception:  # pylint: disable=broad-except
                continue  # this version of torch does not have it
            if value is not None:
                found["torch", key] = one_line(value)
    return found


def facts() -> Facts:
    """Returns all known facts about the program, by scope and key."""
    files = _own_files()
    versions = _versions()
    script = files.get("__main__")
    version = platform.python_version()
    lines = [f"python {version}"]
    lines += [f"package {name} {versions[name]}" for name in sorted(versions)]
    lines += [f"module {name} {hash_bytes(_read(files[name])).hex()}" for name in sorted(files)]
    found = {("python", "version"): version}
    found.update(_commit(script))
    if script:  # a notebook or a shell has no file with the code that was executed
        found["build", "binary"] = hash_bytes("\n".join(lines).encode()).hex()
        found["python", "script"] = script
        if len(sys.argv) > 1:
            found["python", "arguments"] = one_line(shlex.join(sys.argv[1:]))
    found.update({("env", name): one_line(os.environ[name]) for name in VARIABLES
                  if os.environ.get(name)})
    found.update(_torch())
    found.update({("package", name): versions[name] for name in versions})
    return found
