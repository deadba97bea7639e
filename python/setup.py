# setup.py - builds the wheel: the package, and libinvar.so, which CMake builds from the tree around
# it.
#
# The library has no symbol of Python, so one wheel serves every Python 3 of a platform.
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel of invar."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools older than 70.1: the package wheel has bdist_wheel
    from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parent


def version():
    """Returns the version in the tree's CMakeLists.txt."""
    lists = TREE / "CMakeLists.txt"
    if not lists.exists():
        sys.exit(f"invar: {lists} is missing: build the package inside of Invar's tree, as "
                 "`pip install ./python` in a checkout")
    return re.search(r"project\(invar VERSION (\S+)", lists.read_text(encoding="utf-8")).group(1)


class BuildPy(build_py):
    """Builds the library, too, and puts it beside the modules."""

    def run(self):
        super().run()
        work = pathlib.Path(self.get_finalized_command("build").build_temp).resolve() / "cmake"
        generator = ["-G", "Ninja"] if shutil.which("ninja") else []
        # fresh: the tree may have been moved since
        subprocess.run(["cmake", "--fresh", "-S", TREE, "-B", work, *generator,
                        "-DBUILD_TESTING=OFF", "-DINVAR_BISECT=OFF",
                        *shlex.split(os.environ.get("CMAKE_ARGS", ""))],
                       check=True)
        cache = (work / "CMakeCache.txt").read_text(encoding="utf-8")
        made = {"invar_api": "libinvar.so"}
        if re.search("^INVAR_CUDA:BOOL=(ON|TRUE|YES|1)$", cache, re.MULTILINE | re.IGNORECASE):
            made["invar_cuda"] = "invar-cuda.so"
        subprocess.run(["cmake", "--build", work, "--target", *made], check=True)
        editable = getattr(self, "editable_mode", False)
        target = HERE / "invar" if editable else pathlib.Path(self.build_lib) / "invar"
        for name in made.values():
            self.copy_file(str(work / name), str(target / name))


class Platform(Distribution):
    """A distribution with a library for this platform only."""

    def has_ext_modules(self):
        return True


class BdistWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(version=version(), distclass=Platform,
      cmdclass={"build_py": BuildPy, "bdist_wheel": BdistWheel})
