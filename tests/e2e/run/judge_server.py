#!/usr/bin/env python3
# judge_server.py FILE - a reward server over HTTP whose behavior depends on the path of the
# request; it writes its port to FILE.
# SPDX-License-Identifier: Apache-2.0
"""Serves one reward request per sample, and valid, slow, failing or invalid responses by path."""
import collections
import http.server
import json
import pathlib
import sys
import time

asked = collections.Counter()  # requests per path and body


KEY = f"key=hunter{1 + 1}"  # assembled, so that no file of the tree contains it as it is sent


class Judge(http.server.BaseHTTPRequestHandler):
    """One POST per sample."""

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sample = json.loads(body)
        assert sorted(sample) == ["label", "prompt", "response"], sample
        path, _, secret = self.path.partition("?")
        assert secret in ("", KEY, f"{KEY}&v=1", f"{KEY}&v=2"), secret
        asked[path, body] += 1
        right = float(len(set(sample["response"]) & set(sample["label"])))
        parts = json.dumps({"right": right, "format": 0.25, "why": "letters in common"})
        if path == "/flaky" and asked[path, body] % 2:
            self.answer(503, "later")
        elif path == "/slow":
            time.sleep(0.05)
            self.answer(200, parts)
        elif path in ("/parts", "/flaky"):
            self.answer(200, parts)
        elif path == "/number":
            self.answer(200, f" {right}\n")
        elif path == "/late":
            time.sleep(30)
        elif path == "/closes":
            self.close_connection = True
        else:
            answers = {"/nonsense": "<html>oops", "/list": "[1]", "/text": '"1"', "/empty": "",
                       "/two": "1],\"x\":[2", "/nan": "NaN", "/nothing": "{}"}
            self.answer(200 if path in answers else 404, answers.get(path, "no\x1b[31m"))


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    server.daemon_threads = True
    part = pathlib.Path(sys.argv[1] + ".part")
    part.write_text(str(server.server_address[1]), encoding="ascii")
    part.rename(sys.argv[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
