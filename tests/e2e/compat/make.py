#!/usr/bin/env python3
# make.py INVAR FOLDER [ARCHIVE] - makes small runs of every kind, whose records later versions must
# read.
#
# runs-0.1.0.tar.gz was made with the program of commit 153cd7ee (version 0.1.0):
#     tests/e2e/compat/make.py INVAR-0.1.0 /tmp/runs tests/e2e/compat/runs-0.1.0.tar.gz
#
#     plain   GRPO, finished, with a pack of step 1 and a golden
#     sft     supervised fine-tuning, finished
#     judge   a reward plug-in, killed in step 3 with a checkpoint of step 1: replies in the ledger
#     agents  killed in rollout 2, when two of its sessions had ended: sessions.jsonl
#     clock   a recorded schedule, finished: schedule.jsonl, and flight.jsonl in each checkpoint
#
# chains.json has the chains that the finished runs, and an agents run that was not killed, had.
# SPDX-License-Identifier: Apache-2.0
import gzip
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

HERE = pathlib.Path(__file__).absolute().parent
ALWAYS = ["--no-report", "--save-interval", "2", "--keep-checkpoints", "9", "--async-save", "false"]
RUNS = {
    "plain": [],
    "sft": ["--loss-type", "sft_loss", "--n-samples-per-prompt", "1", "--eval-prompt-data",
            "max task:max", "--eval-interval", "2"],
    "judge": ["--rm-type", "none", "--custom-rm-path", "python3 judge.py"],
    "agents": ["--rm-type", "none", "--custom-agent-path", "python3 agent.py",
               "--prompt-data", "task:guess", "--rollout-max-response-len", "6",
               "--agent-concurrency", "1"],
    "clock": ["--rollout-lag", "2", "--rollout-schedule", "recorded", "--rollout-max-delay", "2",
              "--rollout-max-response-len", "8", "--rollout-overlap", "true"],
}
KILLED = {"judge": "kill-at-3", "agents": "kill-at-10"}


def prepare(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = (HERE.parent / "tiny.ini").read_text().replace("num-rollout = 2", "num-rollout = 4")
    (folder / "tiny.ini").write_text(text)
    for name in ("judge.py", "agent.py"):
        shutil.copy(HERE / name, folder / name)


def train(program, folder, name, *words, run=None):
    """Trains a run to its end. Returns exit code, standard error, and the JSON output or {}."""
    done = subprocess.run([program, "train", "tiny.ini", "--run", run or name, "--json", *ALWAYS,
                           *RUNS[name], *words], cwd=folder, capture_output=True, text=True)
    answer = json.loads(done.stdout) if done.returncode == 0 and done.stdout else {}
    return done.returncode, done.stderr, answer


def kill(program, folder, name):
    """Trains a run that its plug-in kills; the plug-in reads the process id from the file
    `victim`."""
    (folder / KILLED[name]).touch()
    words = [program, "train", "tiny.ini", "--run", name, *ALWAYS, *RUNS[name]]
    code = subprocess.run(["sh", "-c", 'echo $$ >victim; exec "$@"', "sh", *words], cwd=folder,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    (folder / KILLED[name]).unlink()
    (folder / "victim").unlink()
    if code != -9:
        sys.exit(f"{name}: exit code {code}, and a plug-in should have killed it")


def make(program, folder, names=tuple(RUNS)):
    """Makes runs with these names. Returns the chains of those that have one."""
    prepare(folder)
    chains = {}
    for name in names:
        if name in KILLED:
            kill(program, folder, name)
        if name == "judge":  # its rewards are random
            continue
        run = "unkilled" if name in KILLED else name
        code, said, answer = train(program, folder, name, run=run)
        if code:
            sys.exit(f"{name}: exit code {code}: {said}")
        chains[name] = answer["chain"]
    shutil.rmtree(folder / "unkilled", ignore_errors=True)
    (folder / "asked").unlink(missing_ok=True)
    return chains


def plain_file(info):
    """Removes time, owner and user from the entry, so that equal runs give equal archives."""
    info.mtime = info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def pack(program, folder, chains, archive):
    subprocess.run([program, "pack", "plain", "--step", "1", "--output", "plain.pack"], cwd=folder,
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run([program, "train", "tiny.ini", "--run", "again", "--no-report",
                    "--record-golden", "plain.golden"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shutil.rmtree(folder / "again")
    (folder / "chains.json").write_text(json.dumps(chains, indent=1) + "\n")
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for path in sorted(folder.rglob("*")):
            out.add(path, str(path.relative_to(folder)), recursive=False, filter=plain_file)
    archive.write_bytes(gzip.compress(text.getvalue(), mtime=0))


def main():
    program, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    chains = make(program, folder)
    if len(sys.argv) > 3:
        pack(program, folder, chains, pathlib.Path(sys.argv[3]).absolute())


if __name__ == "__main__":
    main()
