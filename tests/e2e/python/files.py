#!/usr/bin/env python3
# files.py INVAR LIBRARY WRITER FOLDER - rollout files and packs from Python.
#
# WRITER FILE writes a rollout file with every member of the format. Python must read, write and
# reject files exactly like the engine. INVAR_TEST_FULL=1 adds the largest line and more mutations.
# SPDX-License-Identifier: Apache-2.0
"""Tests of invar.read_rollout, Rollout.write, invar.pack, invar.read_pack and invar.replay."""
import array
import copy
import dataclasses
import fractions
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import built

FULL = bool(os.environ.get("INVAR_TEST_FULL"))
INVAR, WRITER, FOLDER = sys.argv[1], sys.argv[3], pathlib.Path(sys.argv[4])
TREE = pathlib.Path(__file__).resolve().parents[3]
built.use(sys.argv[2], INVAR)

import tiny  # noqa: E402  pylint: disable=wrong-import-position
import invar  # noqa: E402  pylint: disable=wrong-import-position

EXPERTS = {"model-type": "qwen3_moe", "num-experts": 4, "moe-router-topk": 2}
# values of every type
OTHERS = (None, True, 7, -1, 1 << 63, 0.5, "x", "", [], [True], {}, {"a": 1})
ABSENT = {"weights_first", "parts", "turns", "filtered_groups"}


def signed(*lines):
    """Returns a file of these lines, with the valid last line."""
    body = b"".join(lines)
    return body + b'{"end":true,"samples":%d,"sha256":"%s"}\n' % (
        len(lines) - 1, hashlib.sha256(body).hexdigest().encode())


def dump(value):
    return json.dumps(value).encode() + b"\n"


class Files(unittest.TestCase):
    """Files that the engine wrote, for all tests."""

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir(parents=True)
        subprocess.run([WRITER, FOLDER / "all.jsonl"], check=True, stdout=subprocess.DEVNULL)
        for name, more in (("dense", {}), ("experts", EXPERTS)):
            (FOLDER / f"{name}.ini").write_text(tiny.recipe(2, model=more), "utf-8")
            invar.train(FOLDER / f"{name}.ini", run=FOLDER / name, threads=1,
                        save_debug_rollout_data=FOLDER / (name + "-{rollout_id}.jsonl")).close()
        cls.all = (FOLDER / "all.jsonl").read_bytes()
        cls.scratch, cls.unpacked = FOLDER / "scratch", FOLDER / "unpacked"
        cls.unpacked.mkdir()
        tempfile.tempdir = str(cls.unpacked)  # folder of unpacked packs

    def refused(self, data, words="", status="CORRUPT", read=invar.read_rollout):
        """Checks that the file is rejected with one line that names it."""
        self.scratch.write_bytes(data)
        with self.assertRaises(invar.Error) as caught:
            read(self.scratch)
        message = str(caught.exception)
        self.assertEqual(caught.exception.status, status, message)
        self.assertTrue(message.startswith(str(self.scratch)) and "\n" not in message, message)
        self.assertIn(words, message)


class Rollouts(Files):
    """Rollout files."""

    def test_round_trip(self):
        for name in ("all", "dense-0", "dense-1", "experts-0", "experts-1"):
            path, out = FOLDER / f"{name}.jsonl", FOLDER / "new" / "folder" / f"{name}.jsonl"
            rollout = invar.read_rollout(path)
            rollout.write(out)
            self.assertEqual(out.read_bytes(), path.read_bytes(), name)
            self.assertEqual(invar.read_rollout(out), rollout)
            self.assertEqual(copy.deepcopy(rollout).encode(), path.read_bytes())
        self.assertEqual(rollout.samples[0].route_size, 2)
        self.assertGreater(len(set(rollout.samples[0].routing)), 1)
        rollout = invar.read_rollout(FOLDER / "all.jsonl")
        for member in ("mask", "routing", "weights_first", "turns", "parts", "metadata", "removed"):
            self.assertTrue(any(getattr(one, member) for one in rollout.samples), member)
        lines = self.all.splitlines(keepends=True)
        found = array.array("f", json.loads(lines[1])["logprobs"])
        self.assertEqual(found.tobytes(), rollout.samples[0].logprobs.tobytes())
        self.assertEqual(rollout.samples[0].response, 'x = "7"\\\n\0\u00e9\U0001f600')

    def test_singles(self):
        """Numbers are the shortest decimals that read back, compared with a search over all
        digits."""
        rng = random.Random(7)
        words = [rng.getrandbits(32) for _ in range(3000)]
        words += [bits + i for bits in (0, 0x00800000, 0x3f800000, 0x7f7ffff0) for i in range(16)]
        values = array.array("f", struct.pack(f"<{len(words)}I", *words))
        values = array.array("f", [value for value in values if math.isfinite(value)])
        rollout = invar.read_rollout(FOLDER / "all.jsonl")
        sample = rollout.samples[0]
        sample.tokens = [1] * (sample.prompt_tokens + len(values))
        sample.logprobs, sample.mask, sample.routing = values, None, None
        line = json.loads(rollout.encode().split(b"\n")[1], parse_float=str, parse_int=str)
        self.assertEqual(len(line["logprobs"]), len(values))
        for value, text in zip(values, line["logprobs"]):
            self.assertEqual(struct.pack("<f", float(text)), struct.pack("<f", value), text)
            digits = len(re.sub(r"e.*|\D", "", text).strip("0")) or 1
            self.assertLessEqual(digits, 9)
            for fewer in range(1, digits):
                double = float(f"{value:.{fewer}g}")
                self.assertNotEqual(array.array("f", [double])[0], value, text)

    def test_edited(self):
        """A reward that Python changed is used in training."""
        before = invar.read(FOLDER / "dense").sql(
            "SELECT value FROM metrics WHERE step = 0 AND name = 'rollout/raw_reward'")
        for number in (0, 1):
            rollout = invar.read_rollout(FOLDER / f"dense-{number}.jsonl")
            for sample in rollout.samples:
                sample.reward = 0.125 * sample.draw
                sample.parts = {"right": sample.reward}
            rollout.write(FOLDER / f"own-{number}.jsonl")
            rollout.header.run = 32 * "0"
            rollout.write(FOLDER / f"edited-{number}.jsonl")
        # a run does not accept an edited file of its own
        with self.assertRaisesRegex(invar.Error, "not what this recipe gives"):
            self.load("own")
        with self.load("edited") as trained:
            self.assertTrue(trained.verify())
            after = trained.sql(
                "SELECT value FROM metrics WHERE step = 0 AND name = 'rollout/raw_reward'")
        self.assertEqual(list(after[0].values()) if isinstance(after, list)
                         else list(after["value"]), [0.125 * (0 + 1 + 2 + 3) / 4])
        self.assertNotEqual(str(before), str(after))  # control
        with invar.pack(FOLDER / "edited", 1, FOLDER / "edited.pack") as pack:
            self.assertEqual(pack.rollouts(), [invar.read_rollout(FOLDER / "edited-1.jsonl")])
            self.assertTrue(invar.replay(pack).identical)

    def load(self, name):
        return invar.train(FOLDER / "dense.ini", run=FOLDER / name, threads=1,
                           load_debug_rollout_data=FOLDER / (name + "-{rollout_id}.jsonl"))

    def test_other_spelling(self):
        """Other spellings of the same content are read, here and by the engine, and normalized when
        written."""
        for number in (0, 1):
            data = (FOLDER / f"dense-{number}.jsonl").read_bytes()
            lines = [dump(dict(reversed(json.loads(line).items())))
                     for line in data.splitlines()[:-1]]
            lines[1] = lines[1].replace(b'"reward": 0', b'"rewar\\u0064" : 0.0E+1')
            (FOLDER / f"spelt-{number}.jsonl").write_bytes(signed(*lines))
            self.assertEqual(invar.read_rollout(FOLDER / f"spelt-{number}.jsonl").encode(), data)
        with self.load("spelt") as trained, invar.read(FOLDER / "dense") as original:
            self.assertEqual(trained.chain, original.chain)

    def test_agrees(self):
        """Python and the engine accept and reject the same files."""
        def deep(count):
            return b'"metadata":{"a":' + count * b"[" + count * b"]" + b"}"

        def deep_objects(count):
            return b'"metadata":' + count * b'{"a":' + b"{}" + count * b"}"

        for number in (0, 1):  # files without a run, so that only the format is checked
            rollout = invar.read_rollout(FOLDER / f"dense-{number}.jsonl")
            rollout.header.run = 32 * "0"
            rollout.write(FOLDER / f"agreed-{number}.jsonl")
        path = FOLDER / "agreed-0.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)[:-1]
        for good, new in (
                (True, b'"reward":-0'), (True, b'"reward":1E2'), (True, b'"reward":1e-400'),
                (True, b'"reward":123456789012345678901'), (False, b'"reward":1e400'),
                (False, b'"reward":01'), (False, b'"reward":Infinity'), (False, b'"reward":null'),
                (True, b'"metadata":{"":"\\u0000\\ud83d\\ude00\\/\x7f"}'),
                (False, b'"metadata":{"a\\u0000":1}'), (False, b'"metadata":{"a":1,"a":1}'),
                (False, b'"metadata":{"a":"\\ud800"}'), (False, b'"metadata":{"a":"\t"}'),
                (False, b'"metadata":{"a":"\xc0\x80"}'), (False, b'"metadata":[]'),
                (True, deep(510)), (False, deep(511)), (True, deep_objects(510)),
                (False, deep_objects(511)), (True, b'"label":"\\u0001"'),
                (False, b'"label":"\\u0000"'), (True, b'"mask":null'), (False, b'"mask":[1.0,1]'),
                (True, b'"logprobs":null'), (False, b'"logprobs":[3.4028235677973366e38,-1]'),
                (True, b'"removed":false,"turns":1'), (False, b'"removed":false,"turns":0'),
                (True, b'"removed":false,"parts":{"%s":1}' % (47 * b"a")),
                (False, b'"removed":false,"parts":{"%s":1}' % (48 * b"a")),
                (False, b'"removed":false,"parts":{}'),
                (False, b'"removed":false,"weights_first":1'),
                (True, b'"prompt_hash":"%s"' % (32 * b"a")),
                (False, b'"prompt_hash":"%sA"' % (31 * b"a"))):
            key = new[:new.index(b":") + 1]
            line = re.sub(key + rb'(\{[^}]*\}|\[[^]]*\]|"[^"]*"|[^,}]*)', lambda _: new,
                          lines[1], count=1)
            path.write_bytes(signed(lines[0], line, *lines[2:]))
            shutil.rmtree(FOLDER / "agreed", ignore_errors=True)
            seen = []
            for read in (lambda: invar.read_rollout(path), lambda: self.load("agreed").close()):
                try:
                    read()
                    seen.append("")
                except invar.Error as error:
                    seen.append(str(error))
            here, there = (f"{path}:2: " not in words for words in seen)
            self.assertEqual((here, there), (good, good), (new[:60], seen))
            if good:
                self.assertTrue(self.stable(path.read_bytes()))

    def test_values(self):
        """A line has a maximum number of values; commas inside texts do not count."""
        rollout, key = invar.read_rollout(FOLDER / "all.jsonl"), ',[{\\",'
        rollout.samples[0].metadata = {key: []}
        line = re.sub(r'"(\\.|[^"\\])*"', "", rollout.encode().splitlines()[1].decode())
        room = (1 << 22) - sum(map(line.count, "[{,"))
        rollout.samples[0].metadata = {"text": (1 << 22) * ","}
        self.scratch.write_bytes(rollout.encode())
        self.assertEqual(invar.read_rollout(self.scratch), rollout)
        lines = self.all.splitlines(keepends=True)[:-1]
        many = lines[1].replace(b'"metadata":{', b'"metadata":{"a":[0' + (1 << 22) * b",0" + b"],")
        self.refused(signed(lines[0], many, *lines[2:]), "more than 4194304 values")
        if not FULL:  # exactly as many values take ten seconds
            return
        rollout.samples[0].metadata = {key: room * [0]}
        self.scratch.write_bytes(rollout.encode())
        self.assertEqual(len(invar.read_rollout(self.scratch).samples[0].metadata[key]), room)
        rollout.samples[0].metadata[key].append(0)
        with self.assertRaisesRegex(invar.Error, "more than 4194304 values"):
            rollout.encode()

    def test_cut_off(self):
        lines = self.all.splitlines(keepends=True)
        for count in range(len(lines)):
            self.refused(b"".join(lines[:count]), "cut off or changed")
            self.refused(b"".join(lines[:count]) + lines[count][:-1], "cut off or changed")
        for at in range(0, len(self.all), 53):
            self.refused(self.all[:at], "cut off or changed")
        self.refused(self.all + b"\n", "cut off or changed")
        self.refused(self.all + lines[-1], "cut off or changed")
        self.refused(signed(), "cut off or changed")
        self.refused(b"".join(lines[:-1]) + lines[-1].replace(b'"samples":4', b'"samples":3'),
                     "cut off or changed")
        self.refused(signed(lines[0], lines[2], lines[1]), "of group")

    def test_members(self):
        """Every member is removed, and given every other type; unknown members are added."""
        lines = self.all.splitlines(keepends=True)[:-1]
        for number, line in enumerate(lines[:3], 1):  # two samples have all members
            for path in self.members(json.loads(line)):
                self.change(lines, number, path)
            for words, more in (("are known", b'"more":1,'), ("duplicate", b'"weights":7,'),
                                ("invalid token", b'"more":NaN,'), ("overflow", b'"a":1e999,'),
                                ("Unicode", b'"label":"\\ud800",'), ("0xff", b'"\xff":1,')):
                changed = (re.sub(rb'"label":"[^"]*",', b"", line) if b"label" in more else line)
                if number == 1 and b"label" in more:
                    continue
                new = b"{" + more + changed[1:]
                self.refused(signed(*lines[:number - 1], new, *lines[number:]), words)
        deep = lines[2].replace(b'"metadata":{', b'"metadata":{"c":' + 100000 * b"[" + b",")
        self.refused(signed(*lines[:2], deep, *lines[3:]), f"{self.scratch}:3: ")
        deep = lines[2].replace(b'"metadata":{', b'"metadata":{"c":' + 600 * b"[" + 600 * b"]," )
        self.refused(signed(*lines[:2], deep, *lines[3:]), f"{self.scratch}:3: ")
        null = re.sub(rb'"stop":\[[^]]*\]', b'"stop":null', lines[0])
        self.refused(signed(null, *lines[1:]), ':1: value 0 of "stop"')
        self.refused(signed(lines[0].replace(b'"version":2', b'"version":3')), "version 3",
                     status="UNSUPPORTED")

    def test_policy(self):
        """A file names the arithmetic that sampled it; a file of version 1 does not."""
        rollout = invar.read_rollout(FOLDER / "dense-0.jsonl")
        head = rollout.header
        self.assertEqual((head.dtype, head.numerics), ("fp32", "ieee"))
        self.assertEqual(head.model, invar.read_rollout(FOLDER / "dense-1.jsonl").header.model)
        self.assertNotEqual(head.model, invar.read_rollout(FOLDER / "experts-0.jsonl").header.model)
        head.numerics = None
        with self.assertRaisesRegex(invar.Error, 'the header: "numerics" is missing'):
            rollout.encode()
        head.dtype = head.model = None
        data = rollout.encode()
        self.assertIn(b'"version":1,', data.splitlines()[0])
        self.scratch.write_bytes(data)
        self.assertEqual(invar.read_rollout(self.scratch), rollout)
        self.assertEqual(invar.read_rollout(self.scratch).encode(), data)

    @staticmethod
    def members(value, before=()):
        for key, item in value.items():
            yield (*before, key)
            if key == "sampling":
                yield from Rollouts.members(item, (key,))

    def change(self, lines, number, path):
        """Removes a member, or gives it another type: the file is rejected, or read unchanged."""
        for other in ("removed", *OTHERS):
            line = json.loads(lines[number - 1])
            place = line
            for key in path[:-1]:
                place = place[key]
            was = place.pop(path[-1]) if other == "removed" else place[path[-1]]
            if other != "removed":
                place[path[-1]] = other
            data = signed(*lines[:number - 1], dump(line), *lines[number:])
            alike = type(other) is type(was) or {type(other), type(was)} == {int, float}
            if other == "removed" and path[-1] in ABSENT or other is None and path[-1] in (
                    "logprobs", "mask", "routing"):
                self.scratch.write_bytes(data)
                invar.read_rollout(self.scratch)
            elif alike or path[-1] in ("reward", "routing", "temperature", "top_p", "min_p"):
                self.stable(data)
            else:
                self.refused(data, f"{self.scratch}:{number}: ")

    def stable(self, data):
        """Returns False if the file is rejected. Else what is written of it must read back
        equal."""
        self.scratch.write_bytes(data)
        try:
            rollout = invar.read_rollout(self.scratch)
        except invar.Error as error:
            self.assertIn(error.status, ("CORRUPT", "UNSUPPORTED"))
            self.assertNotIn("\n", str(error))
            return False
        written = rollout.encode()
        self.scratch.write_bytes(written)
        self.assertEqual(invar.read_rollout(self.scratch).encode(), written)
        return True

    def test_fuzz(self):
        """Flipped bytes are detected; with a valid sum, no exception other than Error occurs."""
        rng = random.Random(23)
        lines, read = self.all.splitlines(keepends=True)[:-1], 0
        for _ in range(300 if FULL else 100):
            data = bytearray(self.all)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            self.refused(bytes(data))
        for _ in range(1000 if FULL else 250):
            changed = bytearray(lines[which := rng.randrange(len(lines))])
            for _ in range(rng.choice((1, 1, 1, 2, 8))):
                changed[rng.randrange(len(changed) - 1)] = rng.choice(
                    (rng.randrange(256), *b'0123456789-+.eE"\\,:[]{}'))
            read += self.stable(signed(*lines[:which], bytes(changed), *lines[which + 1:]))
        self.assertGreater(read, 50 if FULL else 12)  # otherwise only rejections were tested

    def test_wrong_values(self):
        """Values that Python must not write."""
        def deep(count):
            value = {}
            for _ in range(count):
                value = {"a": value}
            return value

        good = invar.read_rollout(FOLDER / "all.jsonl")
        for member, value, words in (
                ("index", -1, "-1"), ("index", True, "integer"), ("index", 5, "of group"),
                ("draw", 1 << 32, "4294967296"), ("tokens", [1.5], "value 0"),
                ("tokens", "12", "no list"), ("tokens", b"12", "JSON has not"),
                ("tokens", [1 << 31], "value 0"), ("tokens", None, "value 0"),
                ("tokens", [1, 2, 3, 4], '"logprobs" has'), ("prompt_tokens", 99, "99"),
                ("logprobs", [float("nan")] * 50, "JSON"), ("logprobs", [1e39] * 50, "value 0"),
                ("mask", [2] * 50, "value 0"), ("routing", [1 << 16], "65535"),
                ("routing", [1], "expected"), ("routing", b"12", "JSON has not"),
                ("routing", [0.5], "integer"), ("label", "a\0", "a NUL"),
                ("label", "\udc80", "surrogates"), ("label", "\ud83d\ude00", "surrogates"),
                ("label", None, "label"), ("finish", "other", "finish"),
                ("weights_first", 8, "weights_first"), ("reward", float("inf"), "JSON"),
                ("reward", "1", "number"), ("parts", {"a b": 1.0}, "letters"),
                ("parts", {"a": None}, "no number"), ("parts", {7: 1.0}, "no text"),
                ("parts", [], "parts"), ("turns", -1, "-1"), ("turns", 10 ** 5000, "turns"),
                ("metadata", {"a": object()}, "JSON has not"), ("metadata", [], "no object"),
                ("metadata", {"a": {"b": [{1: 2}]}}, "no text"),
                ("metadata", {"a": 1 << 63}, "64 bits"), ("metadata", {"a\0": 1}, "metadata|NUL"),
                ("metadata", deep(511), "deeper"), ("metadata", deep(5000), "recursion"),
                ("removed", 1, "removed"), ("prompt_hash", "A" * 32, "no hash")):
            rollout = copy.deepcopy(good)
            setattr(rollout.samples[3], member, value)
            with self.assertRaises(invar.Error) as caught:
                rollout.write(FOLDER / "never")
            self.assertEqual(caught.exception.status, "INVALID", member)
            self.assertRegex(str(caught.exception), f"^samples.3.: .*{words}")
        self.assertFalse((FOLDER / "never").exists())
        for part, words in (({"header": None}, "the header: is no Header"),
                            ({"samples": [None]}, "samples.0.: is no Sample")):
            with self.assertRaisesRegex(invar.Error, words):
                dataclasses.replace(good, **part).encode()
        changed = copy.deepcopy(good)
        changed.header.sampling.seed = -1
        with self.assertRaisesRegex(invar.Error, '^the header: .*"seed"'):
            changed.encode()
        good.samples[3].tokens = tuple(good.samples[3].tokens)  # any sequence is accepted
        good.samples[3].logprobs = list(good.samples[3].logprobs)
        good.samples[3].reward = fractions.Fraction(good.samples[3].reward)
        self.assertEqual(good.encode(), self.all)
        good.samples[1].metadata = {"b": "\u0001\u007f\u001f/\u00e9\t", "a": [0.1, 1.0, 1e300, -3]}
        self.assertIn('{"a":[0.10000000000000001,1.0,1.0000000000000001e300,-3],'
                      '"b":"\\u0001\x7f\\u001F/\u00e9\\t"}'.encode(), good.encode())

    def test_report(self):
        """The report of a run of Invar has the defaults of its keys."""
        page = FOLDER / "page.html"
        with invar.read(FOLDER / "dense") as run:
            run.report(page)
        text = re.search(r'id="data">(.*?)</script', page.read_text("utf-8"), re.S).group(1)
        data = json.loads(text)
        self.assertEqual((data["defaults"]["lr"], data["defaults"]["seed"]), ("1e-06", "1234"))
        self.assertEqual(data["runs"][0]["damaged"], [])

    def test_never_replaced(self):
        rollout, precious = invar.read_rollout(FOLDER / "all.jsonl"), FOLDER / "precious"
        precious.write_bytes(b"precious")
        (FOLDER / "link").symlink_to(precious)
        (FOLDER / "empty").touch()
        for path in (precious, FOLDER / "link", FOLDER, FOLDER / "dense" / "ledger.db"):
            with self.assertRaisesRegex(invar.Error, "is not replaced"):
                rollout.write(path)
        with self.assertRaises(invar.Error):
            rollout.write(precious / "below")
        self.assertEqual(precious.read_bytes(), b"precious")
        for path in (FOLDER / "empty", FOLDER / "empty"):  # an empty file, and a rollout file
            rollout.write(path)
            self.assertEqual(path.read_bytes(), self.all)
        self.assertEqual(list(FOLDER.glob("*tmp*")), [])
        for path, status in ((FOLDER / "none", "NOTFOUND"), (FOLDER, "INVALID"),
                             ("a\0", "INVALID"), ("/dev/null", "INVALID")):
            with self.assertRaises(invar.Error) as caught:
                invar.read_rollout(path)
            self.assertEqual(caught.exception.status, status)


def member(name, data, **fields):
    """Returns a member of an archive; `fields` has header bytes by offset, the sum is valid."""
    block = bytearray(512)
    texts = {0: name, 100: "0000644", 108: "0000000", 116: "0000000", 124: f"{len(data):011o}",
             136: "0" * 11, 156: "0", 257: "ustar", 263: "00", 329: "0000000", 337: "0000000"}
    header = {at: text.encode() for at, text in texts.items()}
    for at, value in (*header.items(), *((int(at[2:]), value) for at, value in fields.items())):
        block[at:at + len(value)] = value
    block[148:156] = b" " * 8
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


class Packs(Files):
    """Packs."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.path = FOLDER / "step.pack"
        invar.pack(FOLDER / "experts", 1, cls.path).close()
        cls.data = cls.path.read_bytes()

    def test_read(self):
        with invar.read_pack(self.path) as pack:
            with pack.ledger() as run, invar.read(FOLDER / "experts") as original:
                self.assertEqual((run.uuid, run.chain), (original.uuid, original.chain))
                self.assertEqual(pack.run, run.uuid)
                self.assertTrue(run.verify())
                folder = run.file.parent
            self.assertEqual(pack.step, 1)
            self.assertIn("num-experts = 4", pack.recipe)
            self.assertEqual(pack.rollouts(), [])
            pack.extract(FOLDER / "out" / "side")
            for one in pack.members:
                data = pack.read(one.name)
                self.assertEqual((len(data), invar.hash_bytes(data).hex()), (one.bytes, one.hash))
                self.assertEqual((FOLDER / "out" / "side" / one.name).read_bytes(), data)
            with self.assertRaisesRegex(invar.Error, "no new or empty folder"):
                pack.extract(FOLDER / "out" / "side")
            with self.assertRaisesRegex(invar.Error, "no member"):
                pack.read("../experts.ini")
        self.assertFalse(folder.exists())

    def test_replay(self):
        answer = invar.replay(self.path, threads=2)
        with invar.read(FOLDER / "experts") as run:
            self.assertEqual((answer.verdict, answer.step, answer.chain),
                             ("identical", None, run.chain))
        self.assertTrue(invar.replay(FOLDER / "experts", 0).identical)
        with self.assertRaisesRegex(invar.Error, "exit code"):
            invar.replay(FOLDER / "experts", 99)
        with self.assertRaisesRegex(invar.Error, "exit code"):
            invar.pack(FOLDER / "experts", 99, FOLDER / "99.pack")

    def build(self, *members, manifest=None, end=bytes(1024)):
        """Returns an archive that lists all of its members."""
        blocks, listed = b"", []
        for name, data, fields in members:
            blocks += member(name, data, **fields)
            listed.append({"name": name, "bytes": len(data),
                           "xxh128": invar.hash_bytes(data).hex()})
        head = {"format": "invar-pack 1", "run": 32 * "a", "step": 0, "members": listed}
        head.update(manifest or {})
        return blocks + member("manifest.json", dump(head)) + end

    def test_hostile(self):
        good = [("ledger.db", b"x", {}), ("recipe.ini", b"[model]\nname = a..b\n", {})]

        def refused(words, *more, status="CORRUPT", **keys):
            data = self.build(*good, *more, **keys)
            self.refused(data, words, status, invar.read_pack)
            self.assertEqual(list(self.unpacked.iterdir()), [])  # no file is left

        self.scratch.write_bytes(self.build(*good))
        with invar.read_pack(self.scratch) as pack:  # control
            self.assertEqual([one.name for one in pack.members], ["ledger.db", "recipe.ini"])
        for name in ("../x", "a/../x", "/x", "a//x", "./x", ".x", "a/.x", "x/", "a b", "a\\x",
                     "\u00e9", "a\nb", "/".join("abcdefghi")):
            refused("", (name, b"", {}))
        for kind in b"1234567LKxg\0":  # links, devices, folders, extensions
            refused("header", ("x", b"", {"at156": bytes([kind])}))
        refused("header", ("x", b"", {"at156": b"2", "at157": b"/etc/passwd"}))
        refused("header", ("x", b"", {"at100": b"0000755"}))
        refused("header", ("x", b"", {"at345": b"../.."}))
        refused("ends too early", ("x", b"", {"at124": b"77777777777"}))
        refused("ends too early", end=bytes(512))
        refused("ends too early", end=b"")
        refused("follows the end", end=bytes(1536))
        refused("twice", ("ledger.db", b"x", {}))
        refused("format", status="UNSUPPORTED", manifest={"format": "invar-pack 2"})
        refused("uuid", manifest={"run": "../x"})
        refused("uuid", manifest={"run": 33 * "a"})
        refused('"step"', manifest={"step": -1})
        refused("does not list", manifest={"members": []})
        refused("does not list", manifest={"members": {}})
        listed = [{"name": name, "bytes": len(data), "xxh128": invar.hash_bytes(data).hex()}
                  for name, data, _ in good]
        for key, value, words in (("bytes", 2, "damaged"), ("xxh128", 32 * "0", "damaged"),
                                  ("xxh128", None, '"xxh128"'), ("xxh128", "x", "digest"),
                                  ("name", "recipe.ini", "lists")):
            refused(words, manifest={"members": [{**listed[0], key: value}, listed[1]]})
        for key in ("name", "bytes", "xxh128"):
            cut = {one: listed[0][one] for one in listed[0] if one != key}
            refused(f'"{key}"', manifest={"members": [cut, listed[1]]})
        text = (TREE / "engine/run/replay/recorded_keys.c").read_text("utf-8")
        listed = re.search(r"invar_key paths\[\] = \{(.*?)\}", text, re.S).group(1)
        schema = (TREE / "engine/config/keys.def").read_text("utf-8")
        for key in re.findall(r"INVAR_KEY_(\w+)", listed):
            row = re.search(rf'INVAR_KEY\({key}, \w+,\s+"(.*?)", "(.*?)"', schema)
            section, name = row.groups()
            for value in ("/etc/passwd", "../x", "a/../../x"):
                good[1] = ("recipe.ini", f"[{section}]\n{name} = {value}\n".encode(), {})
                refused("path out of the pack")
        for words, recipe in (("include", b"include = /etc/passwd\n"), ("UTF-8", b"# \xff\n"),
                              ("unknown", b"[model]\nno-such-key = 1\n")):
            good[1] = ("recipe.ini", recipe, {})
            refused(words)
        good.pop()
        refused('"recipe.ini" is missing')
        self.refused(bytes(1024), "is not the last member", read=invar.read_pack)
        self.refused(b"", "ends too early", read=invar.read_pack)

    def test_fuzz(self):
        """A flipped byte is detected, unless it changes the run or the step in the manifest."""
        rng, read = random.Random(5), 0
        with invar.read_pack(self.path) as pack:
            known = pack.members
        start = self.data.rindex(b'{"format":"invar-pack 1"')
        for i in range(200 if FULL else 80):
            data = bytearray(self.data)
            at = rng.randrange(start - 512, len(data)) if i % 2 else rng.randrange(len(data))
            data[at] ^= 1 << rng.randrange(8)
            self.scratch.write_bytes(data)
            try:
                with invar.read_pack(self.scratch) as pack:
                    self.assertEqual(pack.members, known)
                read += 1
                self.assertGreater(at, start)
            except invar.Error as error:
                self.assertIn(error.status, ("CORRUPT", "UNSUPPORTED"))
                self.assertNotIn("\n", str(error))
        self.assertLess(read, 20)
        for at in range(0, len(self.data), 4999):
            self.refused(self.data[:at], read=invar.read_pack)
        self.assertEqual(list(self.unpacked.iterdir()), [])

    def test_changed_meanwhile(self):
        """A pack keeps the content that was verified."""
        self.scratch.write_bytes(self.data)
        with invar.read_pack(self.scratch) as pack:
            self.scratch.write_bytes(bytes(len(self.data)))
            pack.extract(FOLDER / "whole")
        for one in pack.members:
            data = (FOLDER / "whole" / one.name).read_bytes()
            self.assertEqual((len(data), invar.hash_bytes(data).hex()), (one.bytes, one.hash))
        self.assertEqual(list(self.unpacked.iterdir()), [])
        for use in (pack.ledger, lambda: pack.read("recipe.ini"), lambda: pack.recipe):
            with self.assertRaisesRegex(invar.Error, "the pack is closed"):
                use()
        with self.assertRaisesRegex(invar.Error, "the pack is closed"):
            pack.extract(FOLDER / "half")
        self.assertFalse((FOLDER / "half").exists() or (FOLDER / "half.partial").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
