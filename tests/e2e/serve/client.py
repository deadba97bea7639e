# client.py - shared by the tests of `invar serve`: a server, requests, and counted checks.
# SPDX-License-Identifier: Apache-2.0
import atexit
import http.client
import json
import os
import re
import resource
import signal
import subprocess
import sys

JSON = {"Content-Type": "application/json"}
checks = 0
failures = []


def expect(holds, what):
    """Counts and checks a condition; a failure is printed, and the test continues."""
    global checks
    checks += 1
    if not holds:
        failures.append(what)
        print(what, file=sys.stderr)


def finish():
    print(f"{checks} checks, {len(failures)} failures")
    sys.exit(1 if failures or not checks else 0)


class Server:
    """A serving program, from construction to stop()."""

    def __init__(self, invar, *words, env=None, files=None):
        def limit_files():
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

        self.process = subprocess.Popen(
            [invar, "serve", "--port", "0", *words], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})}, preexec_fn=limit_files if files else None)
        atexit.register(self.process.kill)  # a test that an exception ends leaves no server
        self.said = ""
        self.port = None
        for line in self.process.stderr:
            self.said += line
            found = re.search(r"serving (.*) at http://\S*:(\d+)/v1$", line.strip())
            if found:
                self.name, self.port = found.group(1), int(found.group(2))
                return
        raise RuntimeError(f"the server has not started: {self.said}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def raw(self, method, path, body=None, headers=None):
        """Returns status, headers and bytes of a response."""
        connection = self.connect()
        connection.request(method, path, body, JSON if headers is None else headers)
        reply = connection.getresponse()
        result = reply.status, reply.headers, reply.read()
        connection.close()
        return result

    def post(self, path, **fields):
        status, _, body = self.raw("POST", path, json.dumps(fields))
        return status, json.loads(body)

    def complete(self, **fields):
        status, reply = self.post("/v1/completions", **fields)
        expect(status == 200, f"completion of {fields}: {status} {reply}")
        return reply

    def chat(self, **fields):
        status, reply = self.post("/v1/chat/completions", **fields)
        expect(status == 200, f"chat of {fields}: {status} {reply}")
        return reply

    def events(self, path, **fields):
        """Returns the events of a stream; the last one, [DONE], is checked and removed."""
        status, headers, body = self.raw("POST", path, json.dumps({**fields, "stream": True}))
        lines = body.decode().split("\n\n")
        expect(status == 200 and headers["Content-Type"] == "text/event-stream",
               f"a stream of {fields}: {status} {body}")
        expect(lines[-2:] == ["data: [DONE]", ""], f"a stream ends with {lines[-2:]}")
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def load(self):
        return json.loads(self.raw("GET", "/health")[2])["requests"]

    def stop(self, number=signal.SIGTERM, code=143):
        self.process.send_signal(number)
        self.said += self.process.stderr.read()
        rc = self.process.wait(60)
        expect(rc == code, f"exit code {rc}, expected {code}: {self.said}")
