#!/usr/bin/env python3
# cuda_lint.py [--record | --changed] FOLDER FLAG ... - the PTX of the CUDA sources has only
# arithmetic of the contract.
#
# Compiles every .cu below kernels-deterministic/cuda to PTX with the flags of the build, and
# rejects instructions whose result is approximate, flushed, contracted by the compiler or dependent
# on the order of threads, and calls of foreign functions. Control: samples of each kind must be
# rejected. PTX stays in FOLDER and is compiled again only if one of its inputs has changed.
#
# cuda_lint.tsv has the digests of sources that passed, with all files of this repository that they
# include. --changed leaves out a source with this digest if the compiler is the recorded one;
# --record checks all sources and writes the file again. Exit code 77 if there is no nvcc, or
# CUTLASS's headers are missing.
# SPDX-License-Identifier: Apache-2.0
"""Instructions that no kernel may contain."""
import concurrent.futures
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCES = pathlib.Path("kernels-deterministic/cuda")
RECORD = pathlib.Path(__file__).with_suffix(".tsv")
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)

# Approximate instructions with known bits (math/sfu.h). Kernels of sm90/ may write them as inline
# assembly; in code that the compiler generates for a function of libm they are rejected.
KNOWN = re.compile(r"\b(?:ex2|rcp)\.approx\.ftz\.f32\b")

# Rejected patterns, and the reason. Division and square root are div.rn and sqrt.rn in PTX.
RULES = [
    (r"\.approx\b", "approximate"),
    (r"\bdiv\.full\b", "approximate"),
    (r"\.ftz\b", "flushes subnormals"),
    (r"\b(?:atom|red)\b[^;]*\.(?:f16|f16x2|bf16|bf16x2|f32|f64)\b", "a float in any order"),
    (r"\bcp\.reduce\b[^;]*\.(?:f16|bf16|f32|f64)\b", "a float in any order"),
    (r"\bredux\b[^;]*\.f32\b", "a float in any order"),
    (r"\bmma\.sync\b[^;]*\.e[45]m[23]\b", "fp8 by mma.sync is not the tensor core's step"),
    (r"\bmma\b[^;]*\.tf32\b", "tf32 is no type of the contract"),
    (r"\bmad\.(?:rn|rz|rm|rp)?\.?f32\b", "contracted"),
    (r"\.func\b.*\b__(?:nv|internal)_\w+", "a function of libdevice"),
    (r"\.extern \.func\b", "a function from elsewhere"),
]

ANY = re.compile("|".join(pattern for pattern, _ in RULES))

SAMPLES = {
    "approximate exp2": "asm volatile(\"ex2.approx.f32 %0, %0;\" : \"+f\"(x));",
    "libdevice": "x = __expf(x);",
    "float atomics": "atomicAdd(out, x);",
    "fast division": "x = __fdividef(x, 3.0f);",
    "fast reciprocal root": "x = rsqrtf(x);",
    "libm": "x = powf(x, 1.5f);",
}
# Rejected in other folders than sm90/.
UNIT = "asm volatile(\"ex2.approx.ftz.f32 %0, %0;\" : \"+f\"(x));"
SAMPLE = "__global__ void kernel(float *out)\n{{\n    float x = *out;\n    {}\n    *out = x;\n}}\n"


@functools.cache
def compiler():
    return subprocess.run(["nvcc", "--version"], check=True, capture_output=True).stdout


@functools.cache
def digest(path):
    try:
        return hashlib.sha256(pathlib.Path(path).read_bytes()).digest()
    except OSError:
        return b""  # a removed header: the fingerprint changes


def fingerprint(command, dependencies):
    """Returns a digest of the compiler, the command and every file that it reads, as the compiler
    lists them."""
    if not dependencies.exists():
        return ""
    files = dependencies.read_text().partition(":")[2].replace("\\\n", " ").split()
    whole = hashlib.sha256(compiler() + repr(command).encode())
    for path in files:
        whole.update(path.encode() + digest(path))
    return whole.hexdigest()


def closure(source):
    """Returns the source and the files of this repository that it includes, on any path."""
    found, waiting = set(), [pathlib.Path(source)]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        waiting += [pathlib.Path(name.decode()) for name in INCLUDE.findall(path.read_bytes())]
    return sorted(found)


def content(source, flags):
    """Returns a digest of all of the repository that the PTX of a source depends on."""
    whole = hashlib.sha256(repr([f for f in flags if not f.startswith("/")]).encode())
    for path in closure(source):
        whole.update(str(path).encode() + digest(path))
    return whole.hexdigest()[:32]


def release():
    """Returns the release of the compiler, such as V13.0.88."""
    return re.search(rb"\bV[\d.]+", compiler()).group().decode()


def recorded():
    """Returns the digests of sources that passed with this compiler."""
    lines = RECORD.read_text("utf-8").splitlines() if RECORD.exists() else [""]
    return set(lines[1:]) if lines[0] == release() else set()


def compile_ptx(source, target, flags):
    dependencies, known = target.with_suffix(".d"), target.with_suffix(".known")
    command = ["nvcc", "-ptx", "-std=c++17", "-O3", "-MD", "-MF", str(dependencies), "-o",
               str(target), *flags, "-I.", str(source)]
    if not (known.exists() and known.read_text() == fingerprint(command, dependencies)):
        known.unlink(missing_ok=True)
        subprocess.run(command, check=True)
        known.write_text(fingerprint(command, dependencies))
    return target.read_text()


def findings(ptx, sm90):
    """Yields (instruction, reason) of every rejected line."""
    written = False
    for line in ptx.splitlines():
        code, _, comment = (part.strip() for part in line.partition("//"))
        if comment in ("begin inline asm", "end inline asm"):
            written = comment.startswith("begin")
        if sm90 and written:
            code = KNOWN.sub("", code)
        if not ANY.search(code) or (code.startswith(".") and ".func" not in code):
            continue
        for pattern, reason in RULES:
            if re.search(pattern, code):
                yield code, reason


def check_source(source, folder, flags):
    ptx = compile_ptx(source, folder / (source.stem + ".ptx"), flags)
    return source, sorted(set(findings(ptx, source.is_relative_to(SOURCES / "sm90")))), ptx


def finds_cutlass(folder, flags):
    source = folder / "cutlass.cu"
    source.write_text("#include <cute/arch/mma_sm90_gmma.hpp>\n")
    return subprocess.run(["nvcc", "-M", *flags, str(source)], check=False,
                          capture_output=True).returncode == 0


def main():
    if not shutil.which("nvcc"):
        print("no nvcc here: skipped")
        return 77
    mode = sys.argv.pop(1) if sys.argv[1].startswith("--") else ""
    folder, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    if not finds_cutlass(folder, flags):
        print("CUTLASS's headers are missing: skipped (scripts/setup cuda brings them)")
        return 77
    code, instructions = 0, 0
    sources = sorted(SOURCES.rglob("*.cu"))
    lines = {s: f"{s}\t{content(s, flags)}" for s in sources}
    passed = recorded() if mode == "--changed" else set()
    changed = [s for s in sources if lines[s] not in passed]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check_source, s, folder, flags) for s in changed]
        for job in jobs:
            source, found, ptx = job.result()
            instructions += ptx.count(";")
            for instruction, reason in found:
                print(f"{source}: {reason}: {instruction}")
                code = 1
    controls = [(name, body, True, True) for name, body in SAMPLES.items()]
    controls += [("unit", UNIT, False, True), ("unit", UNIT, True, False)]
    for name, body, sm90, refused in controls:
        source = folder / (name.replace(" ", "_") + ".cu")
        source.write_text(SAMPLE.format(body))
        ptx = compile_ptx(source, source.with_suffix(".ptx"), flags)
        if bool(list(findings(ptx, sm90))) != refused:
            print(f"control: {name} was {'not noticed' if refused else 'refused'}: {body}")
            code = 1
    print(f"{len(jobs)} of {len(sources)} files, {instructions} instructions, "
          f"{len(controls)} controls")
    if mode == "--record" and not code:
        RECORD.write_text("\n".join([release(), *lines.values()]) + "\n", "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
