# browser.py - a headless Chromium for tests of pages, controlled by the DevTools protocol.
# SPDX-License-Identifier: Apache-2.0
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib

SKIPPED = 77  # exit code of a test without a browser


def program():
    """Returns Chromium's name; skips the test if there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if not found:
        print("skipped: no Chromium; scripts/setup full installs it")
        sys.exit(SKIPPED)
    return found


class Browser:
    """Chromium, controlled through two pipes: a message is JSON and a NUL."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()

        def wire():  # Chromium reads from 3 and writes to 4; first move both pipes away
            read, write = os.dup(to_read), os.dup(back_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"],
            preexec_fn=wire, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(back_write)
        self.pending, self.number, self.events, self.session = b"", 0, [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target,
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.pending:
            piece = os.read(self.back, 1 << 16)
            if not piece:
                raise EOFError("the browser is gone")
            self.pending += piece
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        while True:
            answer = self.receive()
            if answer.get("id") != self.number:
                self.events.append(answer)
                if answer["method"] == "Page.javascriptDialogOpening":
                    sys.exit(f"a script of the data was run: {answer['params']['message']}")
            elif "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            else:
                return answer["result"]

    def ask(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, script):
        for _ in range(200):
            if self.ask(script):
                return True
            time.sleep(0.05)
        return False

    def show(self, url, width, dark):
        self.events = []
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"}])
        self.call("Page.navigate", url=url)
        return self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def mouse(self, kind, x, y, pressed=False):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, clickCount=1,
                  button="left" if pressed or kind == "mouseReleased" else "none",
                  buttons=int(pressed))

    def picture(self, clip=None):
        """Returns the window, or a part of it (x, y, width, height), as PNG."""
        more = {"clip": dict(zip(("x", "y", "width", "height"), clip), scale=1)} if clip else {}
        return base64.b64decode(self.call("Page.captureScreenshot", format="png", **more)["data"])

    def whole_page(self, width):
        height = self.ask("document.documentElement.scrollHeight")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        time.sleep(0.5)  # charts are drawn when they become visible
        return self.picture()

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except EOFError:
            pass
        self.process.wait(30)


def pixels(png):
    """Returns rows of (red, green, blue) of an 8-bit PNG without interlacing."""
    at, data, channels, width = 8, b"", 3, 0
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, _, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0) and color in (2, 6)
            channels = {2: 3, 6: 4}[color]
        elif kind == b"IDAT":
            data += body
        at += 12 + length
    raw, stride = zlib.decompress(data), width * channels
    above, rows = bytearray(stride), []
    for start in range(0, len(raw), stride + 1):
        method, line = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        for i in range(stride):
            left = line[i - channels] if i >= channels else 0
            corner = above[i - channels] if i >= channels else 0
            line[i] = (line[i] + predict(method, left, above[i], corner)) & 255
        rows.append([tuple(line[i:i + 3]) for i in range(0, stride, channels)])
        above = line
    return rows


def predict(method, left, up, corner):
    if method < 4:
        return (0, left, up, (left + up) // 2)[method]
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))
