#!/usr/bin/env python3
# terminal.py COLUMNS PROGRAM [ARGUMENT ...] - prints what PROGRAM writes to a terminal of that
# width. Exits with the program's exit code; standard error is passed through.
# SPDX-License-Identifier: Apache-2.0

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import threading


END = b"\0"  # marks the end of the output: closing a terminal may drop unread bytes


def read_to_end(reader, shown):
    while not shown.endswith(END):
        shown += os.read(reader, 65536)


def main():
    reader, terminal = pty.openpty()
    size = struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    environment = dict(os.environ, TERM="xterm", NO_COLOR="1")
    shown = bytearray()
    reading = threading.Thread(target=read_to_end, args=(reader, shown))
    reading.start()
    status = subprocess.run(sys.argv[2:], stdout=terminal, env=environment).returncode
    os.write(terminal, END)
    reading.join()
    sys.stdout.buffer.write(shown[:-1].replace(b"\r\n", b"\n"))
    return status


if __name__ == "__main__":
    sys.exit(main())
