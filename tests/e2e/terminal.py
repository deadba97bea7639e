#!/usr/bin/env python3
# terminal.py COLUMNS PROGRAM [ARGUMENT ...] - what PROGRAM prints on a terminal of that width.
# Ends with the program's exit code; standard error is left alone.
# SPDX-License-Identifier: Apache-2.0

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def main():
    reader, terminal = pty.openpty()
    size = struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    environment = dict(os.environ, TERM="xterm", NO_COLOR="1")
    child = subprocess.Popen(sys.argv[2:], stdout=terminal, env=environment)
    os.close(terminal)
    shown = b""
    while True:
        try:
            got = os.read(reader, 65536)
        except OSError:  # nobody holds the terminal any more
            break
        if not got:
            break
        shown += got
    sys.stdout.buffer.write(shown.replace(b"\r\n", b"\n"))
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
