#!/usr/bin/env python3
# cuda_lint.py FOLDER FLAG ... - what the CUDA sources become in PTX is arithmetic of the contract.
#
# Compiles every .cu below kernels-deterministic/cuda to PTX with the flags of the build and refuses
# instructions whose result is approximate, flushed, contracted by the compiler or dependent on the
# order of threads, and calls of functions that are not ours. Then the same for samples that must be
# refused. Exit code 77 where there is no nvcc.
# SPDX-License-Identifier: Apache-2.0
"""Instructions that no kernel of ours may contain."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCES = pathlib.Path("kernels-deterministic/cuda")

# What is refused, and why. Division and square root are div.rn and sqrt.rn in PTX.
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

SAMPLES = {
    "approximate exp2": "asm volatile(\"ex2.approx.ftz.f32 %0, %0;\" : \"+f\"(x));",
    "libdevice": "x = __expf(x);",
    "float atomics": "atomicAdd(out, x);",
    "fast division": "x = __fdividef(x, 3.0f);",
    "fast reciprocal root": "x = rsqrtf(x);",
    "libm": "x = powf(x, 1.5f);",
}
SAMPLE = "__global__ void kernel(float *out)\n{{\n    float x = *out;\n    {}\n    *out = x;\n}}\n"


def compile_ptx(source, target, flags):
    command = ["nvcc", "-ptx", "-std=c++17", "-O3", "-o", target, *flags, "-I.", source]
    subprocess.run(command, check=True)
    return target.read_text()


def findings(ptx):
    """(instruction, reason) of every refused line."""
    for line in ptx.splitlines():
        code = line.split("//")[0].strip()
        if not code or (code.startswith(".") and ".func" not in code):
            continue
        for pattern, reason in RULES:
            if re.search(pattern, code):
                yield code, reason


def check_source(source, folder, flags):
    ptx = compile_ptx(source, folder / (source.stem + ".ptx"), flags)
    return source, sorted(set(findings(ptx))), ptx


def main():
    if not shutil.which("nvcc"):
        print("no nvcc here: skipped")
        return 77
    folder, flags = pathlib.Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    code, instructions = 0, 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(check_source, s, folder, flags) for s in sorted(SOURCES.rglob("*.cu"))]
        for job in jobs:
            source, found, ptx = job.result()
            instructions += ptx.count(";")
            for instruction, reason in found:
                print(f"{source}: {reason}: {instruction}")
                code = 1
    for name, body in SAMPLES.items():
        source = folder / "sample.cu"
        source.write_text(SAMPLE.format(body))
        if not list(findings(compile_ptx(source, folder / "sample.ptx", flags))):
            print(f"control: {name} was not noticed: {body}")
            code = 1
    print(f"{len(jobs)} files, {instructions} instructions, {len(SAMPLES)} controls")
    return code


if __name__ == "__main__":
    sys.exit(main())
