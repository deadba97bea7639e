#!/usr/bin/env python3
# teacher.py INVAR FOLDER - on-policy distillation with a teacher on a server.
#
# The run must have the chain of a run that loads the teacher itself, bit by bit, for each format,
# temperature, family and number of ranks. Control: another teacher gives another chain. Responses
# are recorded: neither a replay nor a repeated step sends requests. Invalid responses end the run
# with a clear message.
# SPDX-License-Identifier: Apache-2.0
import http.server
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

E2E = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(E2E), str(E2E / "serve")]
import tiny  # noqa: E402
from client import Server, expect, finish  # noqa: E402

INVAR, FOLDER = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
FULL = bool(os.environ.get("INVAR_TEST_FULL"))
TINY = tiny.recipe(
    3, model={"hidden-size": 32, "ffn-hidden-size": 32, "num-attention-heads": 2},
    rollout={"rollout-max-response-len": 4, "rm-type": "none"},
    grpo={"advantage-estimator": "on_policy_distillation"}, optimizer={"lr": 0.01})
BIG = ["--model-type", "llama", "--num-layers", "2", "--hidden-size", "64", "--ffn-hidden-size",
       "96", "--num-query-groups", "1"]


def run(verb, *words, env=None):
    done = subprocess.run([INVAR, verb, *words], cwd=FOLDER, capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=300)
    return done.returncode, done.stdout + done.stderr


def train(name, *words, env=None):
    """Trains and returns the chain."""
    code, said = run("train", "tiny.ini", "--no-report", "--run", name, *words, env=env)
    expect(code == 0, f"{name}: {code} {said}")
    ledger = sqlite3.connect(f"file:{FOLDER}/{name}/ledger.db?mode=ro", uri=True)
    chain = ledger.execute("SELECT hex(chain) FROM step ORDER BY step DESC, seg DESC").fetchone()
    ledger.close()
    return chain


def query(name, sql):
    ledger = sqlite3.connect(f"file:{FOLDER}/{name}/ledger.db?mode=ro", uri=True)
    rows = ledger.execute(sql).fetchall()
    ledger.close()
    return rows


def refused(name, code, text, *words, env=None):
    got, said = run("train", "tiny.ini", "--no-report", "--run", name, *words, env=env)
    line = [part for part in said.splitlines() if text in part]
    expect(got == code and line, f"{name}: {got}, expected {code} with {text!r}: {said}")


# ---- a proxy between the run and the server -----------------------------------------------------


class Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards requests to `upstream`, and changes responses as the first folder of the path
    says."""

    upstream, asked, seen = "", [], 0

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            pass

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _, how, rest = self.path.split("/", 2)
        Proxy.seen += 1
        Proxy.asked.append(json.loads(body))
        if how == "busy" and Proxy.seen % 2:
            self.answer(503, b"later")
            return
        if how == "closes":
            self.close_connection = True
            return
        if how == "late":
            time.sleep(20)
        request = urllib.request.Request(f"{self.upstream}/{rest}", body,
                                         {"Content-Type": "application/json"})
        try:
            reply = json.loads(urllib.request.urlopen(request, timeout=60).read())
        except urllib.error.HTTPError as error:
            self.answer(error.code, error.read())
            return
        self.answer(200, spoil(how, reply))


def spoil(how, reply):
    lists = reply["choices"][0]["logprobs"]
    if how == "null":
        lists["token_logprobs"][-1] = None
    elif how == "nan":
        lists["token_logprobs"][-1] = float("nan")
    elif how == "infinite":
        lists["token_logprobs"][-1] = -1e39
    elif how == "chance":
        lists["token_logprobs"][-1] = 0.25
    elif how == "words":
        lists["tokens"] = [chr(ord(t) + 1) if t.isdigit() else t for t in lists["tokens"]]
    elif how == "numbers":
        lists["tokens"] = [7] * len(lists["tokens"])
    elif how == "more":
        lists["tokens"].append("7")
        lists["token_logprobs"].append(-1.0)
    elif how == "fewer":
        lists["token_logprobs"].pop()
    elif how == "silent":
        reply["choices"][0]["logprobs"] = None
    elif how == "many":
        reply["choices"] *= 2
    elif how == "moves" and Proxy.seen > 4:
        reply["system_fingerprint"] = "another"
    elif how == "plain":  # stands for a server that is not Invar
        del reply["invar"], reply["system_fingerprint"]
    elif how == "page":
        return b"<html>\x1b[31m</html>"
    elif how == "long":
        return json.dumps(reply).encode() + b" " * (1 << 20)
    return json.dumps(reply).encode()


def check_spoiled(url, chain):
    """Each invalid response is detected; unusual but valid ones are accepted."""
    given = ["the first answer", "\"tokens\" has", "\"token_logprobs\" has"]
    cases = {
        "null": "the first answer: what it gives for token 7 is no log-probability",
        "nan": f"{given[0]} is not JSON",
        "infinite": "is no log-probability", "chance": "is no log-probability",
        "words": 'is "1" there and "0" here: serve a teacher with the model\'s tokenizer',
        "numbers": f"{given[0]}: \"tokens\" has no text at 0",
        "more": f"{given[1]} 9 values, expected 8", "fewer": f"{given[2]} 7 values, expected 8",
        "silent": f"{given[1]} 0 values, expected 8: the server must know echo with logprobs",
        "many": "\"choices\" has 2 values, expected 1",
        "page": "is not JSON: \"<html>?[31m</html>\"",
        "long": "/long/v1/completions is longer than 73728 bytes",
    }
    for how, text in cases.items():
        refused(f"bad-{how}", 2, text, "--opd-teacher-url", f"{url}/{how}/v1")
    Proxy.seen = 0
    refused("moves", 2, "it comes from the model \"another\", those before from \"ieee-fp32-",
            "--opd-teacher-url", f"{url}/moves/v1")
    for how in ("ok", "busy", "plain"):
        expect(train(how, "--opd-teacher-url", f"{url}/{how}/v1") == chain, f"{how}: another chain")
    expect(query("plain", "SELECT value FROM fact WHERE scope = 'plugin-name'") == [("server",)],
           "a server without a name is one")
    refused("bad-warm", 2, "only invar serve is known to score at rollout-temperature = 0.5",
            "--opd-teacher-url", f"{url}/plain/v1", "--rollout-temperature", "0.5")
    if FULL:  # these retry, with a pause after every call
        refused("late", 2, "after 5 calls", "--opd-teacher-url", f"{url}/late/v1",
                "--plugin-timeout", "1")
        refused("closes", 2, "after 5 calls", "--opd-teacher-url", f"{url}/closes/v1")


def check_asked(url):
    """Sends one request per sample; recorded steps send none."""
    words = ["--opd-teacher-url", f"{url}/ok/v1", "--save", "none"]
    Proxy.asked = []
    chain = train("once", *words)
    expect(len(Proxy.asked) == 1 + 3 * 4, f"{len(Proxy.asked)} questions")
    expect(all(q["max_tokens"] == 0 and q["echo"] and q["logprobs"] == 0 and q["temperature"] == 1
               and "model" not in q for q in Proxy.asked), "a question")
    sizes = query("once", "SELECT length(data) FROM reply ORDER BY step")
    tokens = query("once", "SELECT sum(tokens - prompt_tokens) FROM sample GROUP BY step")
    expect(sizes == [(1 + 4 * count,) for (count,) in tokens], f"{sizes} of {tokens}")
    Proxy.asked = []
    expect(train("once", *words) == chain, "executed again from the start")
    expect(len(Proxy.asked) == 1, "what was recorded is not asked")
    code, said = run("replay", "once", "--step", "2")
    expect(code == 0 and "identical" in said, said)
    expect(len(Proxy.asked) == 1, "a replay asks nobody")


# ---- bit-equal to a teacher that the run loads itself -------------------------------------------


def check_bits(folder, words, cells):
    """Compares runs with and without a server; `cells` has the format and further flags of each."""
    seen = []
    for i, (dtype, *more) in enumerate(cells):
        cell = ["--dtype", dtype, *more]
        server = Server(INVAR, "tiny.ini", "--load", f"{folder}/checkpoints", *words, *cell[:2])
        url = ["--opd-teacher-url", f"http://127.0.0.1:{server.port}/v1"]
        own = ["--opd-teacher-load", f"{folder}/checkpoints"]
        here = train(f"{folder}-{dtype}-{i}-own", *own, *cell)
        there = train(f"{folder}-{dtype}-{i}-served", *url, *cell)
        expect(here == there, f"{folder} {cell}: {there}, its own has {here}")
        seen.append(here)
        server.stop()
    return seen


def check_rewards():
    """Without rewards, outputs show no reward, but the loss."""
    words = ["--opd-teacher-load", "small/checkpoints", "--no-report", "--json",
             "--debug-rollout-print-every", "1"]
    for name, rule, shown, hidden in (("judged", "overlap", "reward ", "loss "),
                                      ("unjudged", "none", "loss ", "reward ")):
        code, said = run("train", "tiny.ini", "--run", name, "--rm-type", rule, *words)
        log = (FOLDER / name / "train.log").read_text(encoding="utf-8")
        expect(code == 0 and shown in log and hidden not in log + said, f"{name}: {said}{log}")
        found = json.loads(said[said.index("{\n"):said.rindex("}") + 1])
        expect((found["first_reward"] is None) == (found["last_reward"] is None) ==
               (rule == "none") and found["last_loss"] is not None, f"{name}: {found}")
        told = json.loads(run("ledger", "show", name, "--step", "0", "--json")[1])
        expect(("raw_reward" in str(told), told["samples"][0]["reward"] == "nan") ==
               (rule != "none", rule == "none") and "rollout/advantages" in str(told),
               f"{name}: {told['metrics']}")
        code, said = run("replay", name, "--step", "0")
        expect(code == 0 and "\nidentical\n" in said, f"replay of {name}: {said}")
        code, said = run("train", "tiny.ini", "--run", f"{name}-told", "--rm-type", rule,
                         "--no-report", "--opd-teacher-load", "small/checkpoints")
        expect(code == 0 and f"\n{shown}" in said and hidden not in said, f"{name}: {said}")
    code, said = run("train", "tiny.ini", "--run", "neither", "--debug-rollout-only", "true",
                     "--no-report", "--opd-teacher-load", "small/checkpoints")
    expect(code == 0 and "loss" not in said and "reward" not in said, said)


def main():
    for name in ("http_proxy", "HTTP_PROXY", "INVAR_LEDGER", "INVAR_SAVE", "INVAR_API_KEY"):
        os.environ.pop(name, None)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.chdir(FOLDER)
    (FOLDER / "tiny.ini").write_text(TINY, encoding="ascii")
    learned = ["--advantage-estimator", "grpo", "--rm-type", "overlap"]
    train("small", *learned)
    check_rewards()
    if not (INVAR.parent / "invar-http.so").exists() or not (
            INVAR.parent / "invar-serve.so").exists():
        finish()
    chains = check_bits("small", [], [
        ["fp32"], ["fp32", "--ranks", "2"], ["bf16", "--rollout-temperature", "0.7"],
        ["int4", "--use-opd", "true", *learned]])
    expect(chains[0] == chains[1], "of two ranks")
    expect(len(set(chains)) == 3, "control: other settings, other chains")
    train("large", *learned, *BIG)
    larger = check_bits("large", BIG, [["fp32"]])
    expect(larger[0] != chains[0], "control: another teacher")
    if FULL:
        check_bits("small", [], [["fp8"], ["mxfp8", "--use-opd", "true", *learned]])

    server = Server(INVAR, "tiny.ini", "--load", "small/checkpoints")
    url = f"http://127.0.0.1:{server.port}"
    between = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    between.daemon_threads = True
    Proxy.upstream = url
    threading.Thread(target=between.serve_forever, daemon=True).start()
    spoiled = f"http://127.0.0.1:{between.server_address[1]}"
    check_spoiled(spoiled, chains[0])
    check_asked(spoiled)
    expect(train("named", "--opd-teacher-url", f"{url}/v1", "--opd-teacher-name", server.name)
           == chains[0], "by its name")
    refused("misnamed", 2, "answers with status 404", "--opd-teacher-url", f"{url}/v1",
            "--opd-teacher-name", "nobody")
    train("moved", "--opd-teacher-url", f"{spoiled}/ok/v1", "--num-rollout", "2")
    # The server changes its model: a new run accepts it, a resumed run does not.
    other = Server(INVAR, "tiny.ini", "--load", "large/checkpoints", *BIG)
    Proxy.upstream = f"http://127.0.0.1:{other.port}"
    refused("once", 2, "plug-in opd-teacher-url: it has changed", "--opd-teacher-url",
            f"{spoiled}/ok/v1", "--save", "none")
    refused("moved", 2, "the server has another model than at step 1", "--opd-teacher-url",
            f"{spoiled}/ok/v1")
    other.stop()
    server.stop()
    refused("nobody", 2, "after 5 calls: ", "--opd-teacher-url", f"{url}/v1")
    code, said = run("replay", "ok", "--step", "2")
    expect(code == 0 and "identical" in said, said)

    few = Server(INVAR, "tiny.ini", "--prompt-data", "task:last")  # a smaller vocabulary
    refused("few", 2, "answers with status 400", "--opd-teacher-url",
            f"http://127.0.0.1:{few.port}/v1")
    few.stop()
    secret = "secret-of-teachers"
    key = Server(INVAR, "tiny.ini", "--load", "small/checkpoints", env={"INVAR_API_KEY": secret})
    url = ["--opd-teacher-url", f"http://127.0.0.1:{key.port}/v1"]
    expect(train("key", *url, env={"INVAR_TEACHER_API_KEY": secret}) == chains[0], "with a key")
    expect(secret.encode() not in (FOLDER / "key/ledger.db").read_bytes(), "a key in a ledger")
    refused("no-key", 2, "answers with status 401", *url)
    refused("bad-key", 129, "the key for its server has a blank", *url,
            env={"INVAR_TEACHER_API_KEY": "k\r\nX: y"})
    key.stop()
    for end in ("v1/", "v1?a=b", "v1#a"):
        refused("end", 129, "ends with a slash, or has a query", "--opd-teacher-url",
                f"http://127.0.0.1:{key.port}/{end}")
    refused("address", 129, "'opd-teacher-url' is no address of a server",
            "--opd-teacher-url", "here:80/v1")
    finish()


if __name__ == "__main__":
    main()
