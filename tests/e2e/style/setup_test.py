#!/usr/bin/env python3
# setup_test.py - scripts/setup on simulated machines, and the arguments of the other scripts.
# SPDX-License-Identifier: Apache-2.0
"""Runs scripts/setup with a PATH of stand-in programs that log their calls."""
import os
import pathlib
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"
SETUP = SCRIPTS / "setup"
BUILD = ["gcc", "libc6-dev", "cmake", "ninja-build", "libxxhash-dev", "libcmocka-dev",
         "libsqlite3-dev", "libjansson-dev", "libutf8proc-dev", "zlib1g-dev",
         "libgit2-dev", "libcurl4-openssl-dev", "libmicrohttpd-dev", "python3-jinja2"]


class Machine(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bin = pathlib.Path(folder.name) / "bin"
        self.bin.mkdir()
        self.installed = pathlib.Path(folder.name) / "installed"
        self.calls = pathlib.Path(folder.name) / "calls"
        self.release = pathlib.Path(folder.name) / "os-release"
        for tool in ("bash", "env", "dirname", "sed", "cat", "tr", "grep", "true"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.system("debian", "12")
        self.machine("aarch64")
        self.user(0)
        self.have(BUILD)
        self.fake("dpkg-query", f'grep -qx "${{!#}}" {self.installed} && echo -n installed')
        self.fake("apt-get", f'echo "apt-get $*" >>{self.calls}\n'
                             f'for p in "$@"; do echo "$p" >>{self.installed}; done')

    def fake(self, name, body):
        path = self.bin / name
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def system(self, name, version):
        self.release.write_text(f"ID={name}\nVERSION_ID={version}\n", encoding="utf-8")

    def machine(self, name):
        self.fake("uname", f"echo {name}")

    def user(self, number):
        self.fake("id", f"echo {number}")

    def have(self, packages):
        self.installed.write_text("".join(f"{p}\n" for p in packages), encoding="utf-8")

    def environment(self):
        return {"PATH": str(self.bin), "INVAR_OS_RELEASE": str(self.release), "TERM": "dumb"}

    def run_setup(self, *args):
        """Runs setup without a terminal. Returns exit code and output."""
        done = subprocess.run([SETUP, *args], env=self.environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout

    def run_on_terminal(self, answer, *args, **more):
        """Runs setup on a terminal and types `answer`. Returns exit code and output."""
        leader, follower = pty.openpty()
        with subprocess.Popen([SETUP, *args], env=self.environment() | more, stdin=follower,
                              stdout=follower, stderr=follower) as process:
            os.close(follower)
            os.write(leader, answer.encode())
            shown = b""
            try:
                while chunk := os.read(leader, 4096):
                    shown += chunk
            except OSError:  # the last process has closed the terminal
                pass
        os.close(leader)
        return process.returncode, shown.decode()

    def apt_calls(self):
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []

    def assert_installs(self, *packages):
        update, install = self.apt_calls()
        self.assertIn(" update", update)
        self.assertEqual(install.split("--no-install-recommends ")[1].split(), list(packages))

    def test_nothing_missing(self):
        code, text = self.run_setup()
        self.assertEqual((code, self.apt_calls()), (0, []))
        self.assertIn("nothing is missing", text)

    def test_check_lists_and_installs_nothing(self):
        self.have(BUILD[:4])
        code, text = self.run_setup("--check")
        self.assertEqual((code, self.apt_calls()), (1, []))
        self.assertIn("10 missing", text)
        self.assertIn("    libxxhash-dev\n    libcmocka-dev\n", text)

    def test_installs_only_what_is_missing(self):
        self.have(BUILD[1:])
        self.assertEqual(self.run_setup()[0], 0)
        self.assert_installs("gcc")

    def test_cross_compiler_is_the_other_architecture(self):
        for here, other, port in (("aarch64", "x86-64", "amd64"), ("x86_64", "aarch64", "arm64")):
            self.machine(here)
            for system in (("debian", "12"), ("ubuntu", "24.04")):
                self.system(*system)
                text = self.run_setup("--check", "test")[1]
                self.assertIn(f"    gcc-{other}-linux-gnu\n", text)
                self.assertIn(f"    libc6-dev-{port}-cross\n", text)

    def test_browser_only_where_it_is_a_package(self):
        self.assertIn("    chromium\n", self.run_setup("--check", "full")[1])
        self.system("ubuntu", "24.04")
        text = self.run_setup("--check", "full")[1]
        self.assertNotIn("chromium", text)
        self.assertIn("    clang\n", text)

    def test_mpi_is_a_group(self):
        code, text = self.run_setup("--check", "mpi")
        self.assertEqual(code, 1)
        self.assertIn("libopenmpi-dev", text)
        self.assertIn("openmpi-bin", text)
        self.have(BUILD + ["libopenmpi-dev", "openmpi-bin"])
        self.assertEqual(self.run_setup("--check", "build", "mpi")[0], 0)

    def test_cuda_needs_pip_and_looks_for_the_headers(self):
        code, text = self.run_setup("--check", "cuda")
        self.assertEqual(code, 1)
        self.assertIn("    python3-pip\n", text)
        self.have(["python3-pip"])
        self.assertIn("CUTLASS's headers", self.run_setup("--check", "cuda")[1])

    def test_refuses_other_processors(self):
        self.machine("riscv64")
        code, text = self.run_setup()
        self.assertEqual(code, 2)
        self.assertIn("riscv64", text)

    def test_refuses_unknown_arguments(self):
        code, text = self.run_setup("everything")
        self.assertEqual(code, 2)
        self.assertIn('"everything"', text)

    def test_other_systems_go_on_when_all_is_there(self):
        self.system("fedora", "41")
        for tool in ("gcc", "cmake", "ninja", "python3"):
            self.fake(tool, "cat >/dev/null")
        code, text = self.run_setup()
        self.assertEqual((code, self.apt_calls()), (0, []))
        self.assertIn("fedora 41", text)

    def test_other_systems_install_nothing(self):
        self.system("fedora", "41")
        self.fake("gcc", "cat >/dev/null")
        code, text = self.run_setup()
        self.assertEqual((code, self.apt_calls()), (2, []))
        self.assertIn("    cmake\n    ninja-build\n", text)
        self.release.unlink()
        code, text = self.run_setup()
        self.assertEqual(code, 2)
        self.assertIn("an unknown system", text)

    def test_refuses_without_root_and_sudo(self):
        self.have(BUILD[1:])
        self.user(1000)
        code, text = self.run_setup()
        self.assertEqual((code, self.apt_calls()), (2, []))
        self.assertIn("there is no sudo", text)
        self.assertIn("apt-get install --no-install-recommends gcc", text)

    def test_sudo(self):
        self.have(BUILD[1:])
        self.user(1000)
        self.fake("sudo", '[[ $1 == -n ]] && shift\nexec "$@"')
        self.assertEqual(self.run_setup()[0], 0)
        self.assert_installs("gcc")

    def test_sudo_that_wants_a_password(self):
        self.have(BUILD[1:])
        self.user(1000)
        self.fake("sudo", "[[ $1 == -n ]] && exit 1")
        code, text = self.run_setup()
        self.assertEqual((code, self.apt_calls()), (2, []))
        self.assertIn("password", text)

    def test_failing_update_is_survived(self):
        self.have(BUILD[1:])
        real = (self.bin / "apt-get").read_text(encoding="utf-8").split("\n", 1)[1]
        self.fake("apt-get", f'{real}[[ ${{!#}} != update ]]')
        code, text = self.run_setup()
        self.assertEqual(code, 0)
        self.assertIn("update failed", text)

    def test_failing_install_is_an_error(self):
        self.have(BUILD[1:])
        self.fake("apt-get", "exit 100")
        code, text = self.run_setup()
        self.assertEqual(code, 2)
        self.assertIn("could not install: gcc", text)

    def test_install_that_does_nothing_is_an_error(self):
        self.have(BUILD[1:])
        self.fake("apt-get", "exit 0")
        code, text = self.run_setup()
        self.assertEqual(code, 2)
        self.assertIn("still missing after apt-get: gcc", text)

    def test_terminal_is_asked(self):
        self.have(BUILD[1:])
        code, text = self.run_on_terminal("n\n")
        self.assertEqual((code, self.apt_calls()), (2, []))
        self.assertIn("[Y/n]", text)
        self.assertIn("nothing was installed", text)
        self.assertEqual(self.run_on_terminal("\n")[0], 0)
        self.assert_installs("gcc")

    def test_terminal_is_not_asked(self):
        for args, more in ((["--yes"], {}), ([], {"CI": "true"})):
            self.have(BUILD[1:])
            self.calls.unlink(missing_ok=True)
            code, text = self.run_on_terminal("", *args, **more)
            self.assertEqual(code, 0)
            self.assertNotIn("[Y/n]", text)
            self.assert_installs("gcc")

    def test_color_only_on_a_terminal(self):
        self.assertNotIn("\x1b", self.run_setup()[1])
        self.assertIn("\x1b", self.run_on_terminal("", TERM="xterm")[1])
        self.assertNotIn("\x1b", self.run_on_terminal("", TERM="xterm", NO_COLOR="1")[1])


class Usage(unittest.TestCase):
    def run_script(self, name, *args):
        done = subprocess.run([SCRIPTS / name, *args], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        return done.returncode, done.stdout

    def test_help(self):
        for name in ("quickstart", "test", "setup", "format", "cutlass"):
            code, text = self.run_script(name, "--help")
            self.assertEqual(code, 0)
            self.assertTrue(text.startswith(f"{name} ["), text)
            self.assertNotIn("SPDX", text)

    def test_unknown_arguments(self):
        for name in ("quickstart", "test", "format", "cutlass"):
            code, text = self.run_script(name, "--fast")
            self.assertEqual(code, 2)
            self.assertIn('"--fast"', text)

    def test_arguments_that_contradict(self):
        self.assertEqual(self.run_script("test", "--full", "--asan")[0], 2)
        self.assertEqual(self.run_script("test", "-R")[0], 2)


class Cutlass(unittest.TestCase):
    """scripts/cutlass with a stand-in for pip that copies a small wheel."""
    HEADER = "cutlass_library/source/include/cute/arch/mma_sm90_gmma.hpp"

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.folder, self.calls = self.home / "cutlass", self.home / "calls"
        (self.home / "bin").mkdir()
        for tool in ("bash", "env", "dirname", "mktemp", "mkdir", "rm", "mv", "cat", "cp"):
            (self.home / "bin" / tool).symlink_to(shutil.which(tool))
        # The python3 of pyenv is a script that needs more programs than these.
        (self.home / "bin" / "python3").symlink_to(sys.executable)
        self.wheel(self.HEADER, "new")
        self.pip(f'echo "$*" >>{self.calls}\ncat "${{!#}}" >>{self.calls}\n'
                 f'cp {self.home}/a.whl "${{!#%/*}}"')

    def wheel(self, name, text):
        with zipfile.ZipFile(self.home / "a.whl", "w") as made:
            made.writestr(name, text)

    def pip(self, body):
        path = self.home / "bin" / "pip3"
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n", encoding="utf-8")
        path.chmod(0o755)

    def cutlass(self, *args):
        done = subprocess.run([SCRIPTS / "cutlass", *args], text=True, check=False,
                              env={"PATH": str(self.home / "bin"), "TERM": "dumb"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return done.returncode, done.stdout

    def header(self):
        return (self.folder / "include/cute/arch/mma_sm90_gmma.hpp").read_text(encoding="utf-8")

    def test_fetches_once_and_by_hash(self):
        self.assertEqual(self.cutlass("--check", self.folder)[0], 1)
        self.assertFalse(self.folder.exists())
        for _ in range(2):
            self.assertEqual(self.cutlass(self.folder), (0, ""))
        self.assertEqual(self.cutlass("--check", self.folder)[0], 0)
        self.assertEqual(self.header(), "new")
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"include", "version"})
        call, requirement = self.calls.read_text(encoding="utf-8").splitlines()
        self.assertIn("--no-deps", call)
        self.assertIn("--require-hashes", call)
        self.assertRegex(requirement, r"^nvidia-cutlass==[0-9.]+ --hash=sha256:[0-9a-f]{64}$")

    def test_another_version_is_replaced(self):
        self.cutlass(self.folder)
        (self.folder / "version").write_text("nvidia-cutlass==1\n", encoding="utf-8")
        self.wheel(self.HEADER, "newer")
        self.assertEqual(self.cutlass(self.folder)[0], 0)
        self.assertEqual(self.header(), "newer")

    def test_failures_leave_what_was_there(self):
        self.cutlass(self.folder)
        (self.folder / "version").write_text("nvidia-cutlass==1\n", encoding="utf-8")
        self.pip("exit 1")
        code, text = self.cutlass(self.folder)
        self.assertEqual(code, 77)
        self.assertIn("pip3 could not fetch it", text)
        (self.home / "bin" / "pip3").unlink()
        code, text = self.cutlass(self.folder)
        self.assertEqual(code, 77)
        self.assertIn("there is no pip3", text)
        self.pip('echo no wheel >"${!#%/*}/a.whl"')
        code, text = self.cutlass(self.folder)
        self.assertEqual(code, 2)
        self.assertIn("cannot unpack", text)
        self.assertEqual(self.header(), "new")
        self.assertEqual({p.name for p in self.folder.iterdir()}, {"include", "version"})


if __name__ == "__main__":
    unittest.main()
