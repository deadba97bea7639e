# shuffle.py > shuffle.txt - expected orders of epochs and items of built-in tasks.
# SPDX-License-Identifier: Apache-2.0
"""Independent implementation of Philox, the shuffle and the tasks.

It follows docs/arithmetic.md, engine/files/data/dataset.h and docs/data.md, not the C code.
"""


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b % 2**32, a >> 32 ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def shuffle(seed, epoch, count):
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        word = philox([i, epoch % 2**32, epoch >> 32, 0], [seed, 3])
        j = (word[0] + 2**32 * word[1]) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


class Draw:
    def __init__(self, seed, item):
        self.seed, self.item, self.next = seed, item, 0

    def choose(self, n):
        word = philox([self.item, self.next // 4, 0, 0], [self.seed, 4])[self.next % 4]
        self.next += 1
        return word * n >> 32

    def symbols(self, alphabet):
        return "".join(alphabet[self.choose(len(alphabet))] for _ in range(2 + self.choose(3)))


def task(name, seed, item):
    draw = Draw(seed, item)
    if name == "guess":
        return "?", str(1 + draw.choose(7))
    if name in ("max", "add"):
        a, b = draw.choose(10), draw.choose(10)
        return (f"{a},{b}=", str(max(a, b))) if name == "max" else (f"{a}+{b}=", str(a + b))
    text = draw.symbols("0123456789" if name == "sort" else "abcdefgh")
    answers = {"last": text[-1], "copy": text, "reverse": text[::-1], "sort": "".join(sorted(text))}
    return text + "=", answers[name]


assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
for seed, epoch, count in [(42, 0, 1), (42, 0, 2), (42, 0, 10), (42, 1, 10), (43, 0, 10),
                           (4294967295, 2**33 + 5, 50), (0, 7, 257)]:
    print("shuffle", seed, epoch, count, *shuffle(seed, epoch, count))
for name in ("last", "max", "add", "copy", "reverse", "sort", "guess"):
    for item in range(12):
        print("task", name, 1000 + item // 6, item * 77, *task(name, 1000 + item // 6, item * 77))
