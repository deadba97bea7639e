#!/usr/bin/env python3
# tokenizer.py [--seed N] [--strings N] [--out DIR] [KIND ...] | --check [DIR] - tokenizer fixtures.
#
# Trains small BPE tokenizers with the parts of known models (KINDS, or only the given ones) and
# writes, per tokenizer, tokenizer.json and expect.json: ids of strings, texts of ids, and checksums
# of the ids of code points in several places and of long mixed text. steps.json has such checksums
# of words and of normalized text. Renders the chat templates of DIR/templates by transformers into
# templates.json. tests/unit/engine/text/tokenizer/oracle.c compares.
#
# With --check it computes the fixtures in DIR again from its tokenizers; all must be equal. DIR is
# by default the folder tokenizer in this folder.
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tokenizer's oracle tests."""
import argparse
import array
import dataclasses
import json
import pathlib
import random
import shutil
import sys
import zlib

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre
from tokenizers import processors

HERE = pathlib.Path(__file__).resolve().parent
BLOCK = 4096
LARGE_CHARS = 20000
LARGE_TEXTS = 8

# ---- text that C makes, too (tests/unit/engine/text/tokenizer/oracle.c)
# -------------------------------

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\x0b",
          "\x85"]
PIECES = ["'s", "'S", "'\u017f", "'re", "'LL", "'Ve", "'d", "'M", " '", "<|im_start|>",
          "<|im_end|>", "<|endoftext|>", " <|strip|>  ", "<|im_", "\U0001f600",
          "e\u0301\u0323", "THE", "\u0130", "1234567", " the", "\u212b", "don't"]


def mixed(seed, chars):
    """Returns pseudo-random text of every kind."""
    x = seed * 2654435761 % (1 << 32) + 1
    out = []
    for _ in range(chars):
        x ^= x << 13 & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 7
        x ^= x << 17 & 0xFFFFFFFFFFFFFFFF
        kind, value = x % 16, x >> 8
        if kind < 6:
            out.append(chr(97 + value % 26))
        elif kind == 6:
            out.append(" ")
        elif kind == 7:
            out.append(chr(48 + value % 10))
        elif kind == 8:
            out.append(PUNCTUATION[value % len(PUNCTUATION)])
        elif kind == 9:
            out.append(SPACES[value % len(SPACES)])
        elif kind == 10:
            out.append(chr(0x80 + value % 0x2F80))
        elif kind == 11:
            out.append(chr(0x300 + value % 0x70))
        elif kind == 12:
            out.append(chr(0x4E00 + value % 0x5200))
        elif kind == 13:
            point = value % 0x110000
            out.append(chr(point if not 0xD800 <= point < 0xE000 else 0x41))
        elif kind == 14:
            out.append(chr(0xAC00 + value % 11172))
        else:
            out.append(PIECES[value % len(PIECES)])
    return "".join(out)


def places(c):
    """Returns a character alone, between others, doubled, and beside characters it may join."""
    return f"{c} a{c}b {c}{c}'{c}1{c}1\n{c}\n{c}\u0301e{c}\u0323 q\u0345{c} {c}"


# ---- tokenizers ----------------------------------------------------------------------------------

CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = "(?i:" + CONTRACTIONS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + REST
QWEN2 = "(?i:" + CONTRACTIONS + r")|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + REST

PREFIX = r"[^\r\n\p{L}\p{N}]?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def cased(tail):
    return f"{PREFIX}{UPPER}*{LOWER}+{tail}|{PREFIX}{UPPER}+{LOWER}*{tail}"


O200K = cased("(?i:" + CONTRACTIONS + ")?") + r"|\p{N}{1,3}" + CASED_REST
TEKKEN = cased("") + r"|\p{N}" + CASED_REST
NUMBERS = r"\p{N}{1,3}"
HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = """the of and to in a is that for it as was with be by on not he I his but at are
this have from or had an they which one you were her all she there would their we him been
has when who will more no if out so said what up its about into than them can only other new
some could time these two may then do first any my now such like our over man me even most
made after also did many before must don't I'll we've it's they're you'd def return import
self None print == != += -> // /* */ <b> </b> été naïve façade Straße über schön niño mañana
São coração привет мир как дела это тест γειά σου κόσμε שלום עולם مرحبا بالعالم नमस्ते
दुनिया สวัสดีชาวโลก 你好 世界 我们 学习 こんにちは 世界 カタカナ 안녕하세요 세계 한국어
tiếng Việt 😀 🎉 👩‍👩‍👧 1 12 123 1234 2024 3.14 1,000 ½ ² Ⅷ x² \\frac{1}{2} boxed""".split()


def corpus(seed):
    chance = random.Random(seed)
    ends = ["", "", "", ".", ",", "!", "?", "\n", "\n\n", "  ", "\t", "...", ")"]
    lines = [" ".join(chance.choice(WORDS) + chance.choice(ends) for _ in range(60))
             for _ in range(400)]
    return lines + [mixed(seed + i, 400) for i in range(40)]


def byte_level(*splits):
    return pre.Sequence([*(pre.Split(Regex(split), "isolated") for split in splits),
                         pre.ByteLevel(add_prefix_space=False, use_regex=False)])


SENTENCES = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]


def to_spaces(*more):
    return decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                              decoders.Fuse(), *more])


def gguf_decoder(*more):
    """Returns the decoder that transformers up to 5.17 writes for a tokenizer read from a GGUF
    file."""
    return decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Replace("\u2581", " "), *more])


@dataclasses.dataclass
class Kind:
    """
    A tokenizer's parts. `limit` is the number of bytes or characters in the vocabulary; code points
    below `sweep` are tested one by one. `added` are additional tokens, which are frequent in the
    test strings.
    """
    pre_tokenizer: object = None
    normalizer: object = None
    model: dict = dataclasses.field(default_factory=dict)
    decoder: object = decoders.ByteLevel()
    limit: int = 0
    sweep: int = 0x4000
    added: list = dataclasses.field(default_factory=list)


KINDS = {
    "gpt2": Kind(pre.ByteLevel(add_prefix_space=True), sweep=0x110000),
    "llama3": Kind(byte_level(LLAMA3), model={"ignore_merges": True}, sweep=0x110000),
    "qwen2": Kind(byte_level(QWEN2), normalizers.NFC(), sweep=0x110000),
    "o200k": Kind(byte_level(O200K), model={"ignore_merges": True}),
    "tekken": Kind(byte_level(TEKKEN), model={"ignore_merges": True}),
    "deepseek": Kind(byte_level(NUMBERS, HAN, DEEPSEEK)),
    "smollm2": Kind(pre.Sequence([pre.Digits(individual_digits=True),
                                  pre.ByteLevel(add_prefix_space=False)]), limit=200),
    "unknown": Kind(pre.Sequence([pre.Digits(), pre.ByteLevel()]),
                    model={"unk_token": "<unk>", "fuse_unk": True}, limit=200),
    "llama2": Kind(
        None, normalizers.Sequence([normalizers.Prepend("\u2581"),
                                    normalizers.Replace(" ", "\u2581")]), SENTENCES,
        to_spaces(decoders.Strip(" ", 1, 0)), 150, added=[
            AddedToken("[INST]", normalized=True), AddedToken("solo", single_word=True),
            AddedToken("a b", lstrip=True, normalized=True, special=True)]),
    "mistral": Kind(
        pre.Metaspace(prepend_scheme="first", split=False), None, SENTENCES,
        to_spaces(decoders.Strip(" ", 1, 0)), 150, added=[
            AddedToken("solo", single_word=True, normalized=False),
            AddedToken("<|end|>", rstrip=True, normalized=False, special=True)]),
    "gemma": Kind(pre.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "\u2581"),
                  SENTENCES, to_spaces(), 150, added=[
                      AddedToken("\u2581\u2581", normalized=False), AddedToken("\n\n"),
                      AddedToken("   ", normalized=False)]),
    "metaspace": Kind(pre.Sequence([pre.Punctuation("contiguous"), pre.Digits(), pre.Metaspace()]),
                      None, {"unk_token": "<unk>"}, decoders.Metaspace(), 100),
    "gguf_bytes": Kind(byte_level(LLAMA3), model={"ignore_merges": True}, sweep=0x1000,
                       decoder=gguf_decoder(decoders.ByteLevel(), decoders.Strip(" ", 1, 0)),
                       added=[AddedToken("<|\u2581|>", normalized=False, special=True)]),
    "gguf_runs": Kind(byte_level(LLAMA3), sweep=0x1000, decoder=gguf_decoder(decoders.ByteLevel()),
                      added=[AddedToken(name, normalized=False) for name in (
                          "<0xC3>", "<0xA9>", "<0xE2>", "<0x96>", "<0x81>", "<0x41>", "\u2581")]),
    "gguf_strings": Kind(
        None, normalizers.Sequence([normalizers.Prepend("\u2581"),
                                    normalizers.Replace(" ", "\u2581")]), SENTENCES,
        gguf_decoder(decoders.Strip(" ", 1, 0)), 150, 0x1000),
    "byte_tokens": Kind(pre.ByteLevel(add_prefix_space=False), normalizers.NFC(), sweep=0x1000,
                        decoder=decoders.Sequence([
                            decoders.Replace("\u0120", "\u0120\u0120"), decoders.ByteLevel(),
                            decoders.Replace("e", "\u00e9"), decoders.Strip(" ", 2, 0)])),
    "lowercase": Kind(
        None, normalizers.Sequence([
            normalizers.NFKD(), normalizers.Sequence([normalizers.StripAccents(),
                                                      normalizers.Lowercase()]),
            normalizers.Strip(left=False, right=True), normalizers.Replace("th", "\u00fe")]),
        {"ignore_merges": True}, None, 100, added=[
            AddedToken("\u00dcber", normalized=True), AddedToken("Th", single_word=True)]),
}


def learn(tokenizer, kind, seed):
    """Trains the vocabulary; a tokenizer of characters is trained on words."""
    byte_words = "ByteLevel" in str(kind.decoder)
    tokenizer.pre_tokenizer = kind.pre_tokenizer if byte_words else pre.Metaspace()
    known = [kind.model["unk_token"]] if "unk_token" in kind.model else []
    if kind.model.get("byte_fallback"):
        known += ["<s>", "</s>", *BYTE_NAMES]
    alphabet = {"limit_alphabet": kind.limit} if kind.limit else {
        "initial_alphabet": pre.ByteLevel.alphabet()}
    size = 700 + len(known) if not byte_words else 700
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=known,
                                  **alphabet)
    tokenizer.train_from_iterator(corpus(seed), trainer)


def without_byte_tokens(tokenizer):
    """Makes byte tokens plain tokens, as in real files; training made them special."""
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"]
                            if token["content"] not in BYTE_NAMES]
    return Tokenizer.from_str(json.dumps(data))


def train(name, seed):
    kind = KINDS[name]
    tokenizer = Tokenizer(models.BPE(**kind.model))
    if kind.normalizer and not kind.added:
        tokenizer.normalizer = kind.normalizer
    learn(tokenizer, kind, seed)
    tokenizer = without_byte_tokens(tokenizer)
    tokenizer.normalizer = kind.normalizer
    tokenizer.pre_tokenizer = kind.pre_tokenizer
    tokenizer.decoder = kind.decoder
    tokenizer.add_tokens([AddedToken("<|endoftext|>", special=True, normalized=False),
                          AddedToken("<|im_start|>", special=True, normalized=False),
                          AddedToken("<|im_end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<|strip|>", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("<tool_call>", special=False, normalized=False),
                          AddedToken(" zq", rstrip=True, normalized=False),
                          AddedToken("caf\u00e9s", special=False, normalized=True)])
    tokenizer.add_tokens(kind.added)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    if name == "llama3":
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[
                ("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))])])
    return tokenizer


def write(folder, name, tokenizer):
    """Writes tokenizer.json, for one of them with merges in the old form, and its config."""
    data = json.loads(tokenizer.to_str())
    if name in ("qwen2", "gemma"):
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    text = json.dumps(data, ensure_ascii=False, indent=None, separators=(",", ":"))
    (place / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    config = {"eos_token": "<|im_end|>", "added_tokens_decoder": {
        str(token["id"]): {"content": token["content"]} for token in data["added_tokens"]}}
    (place / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


# ---- what they say -------------------------------------------------------------------------------

TRICKY = [
    "", " ", "  ", "\n", " \n", "\n ", "\r\n", "\t\t", "a", " a", "a ", "  a", "a  b", "a   b  ",
    "\n\n\n", " \n \n ", "a\n\nb", "a \n b", "x\r\n\r\ny", "\u00a0", "\u00a0a", " \u00a0 a",
    "\u3000\u3000x", "a\u2028b", "a\u2029\u2029b", "\x1c\x1d\x1e\x1f", "\x85\x85a",
    "\u180e\u200b\ufeff", "'s", "'S", "'\u017f", "'\u017f\u017f", "x'\u017fy", "don't", "DON'T",
    "we'll", "WE'LL", "'lL", "'re've", "'", "''", "''s", "' s", "'sa", "'\u212a", "'R\u0395", "I'm",
    "I'M", "I'd've", "l'\u00e9t\u00e9", "'1", "'t1", "1", "12", "123", "1234", "12345678", " 123",
    "1 2 3", "1,234.56", "\u00bd\u00b2\u2167", "\u0663\u0664\u0665\u0666", "\u4e00\u4e8c\u4e09",
    "a1b2", "1a", "1'sa", "x=1+2", "!!!", " !!!", "!!!\n\n", "!!!\r\n x", "! \n", "... a", "\u00e9",
    "e\u0301", "e\u0301\u0323", "e\u0323\u0301", "\u1e69", "s\u0323\u0307", "s\u0307\u0323",
    "\u212b", "A\u030a", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0915\u093c", "\u0344",
    "\u0308\u0301", "\u2126", "\u0374", "\u1fef", "\U0001d15e", "\ufb1d", "\U00011935\U00011930",
    "\U00011938", "a\u0898\u0301", "a\u0301\u0898\u0323", "a" + "\u0301" * 40 + "\u0323" * 40,
    "q\u0327\u0323\u0345\u0301", "\u0b47\u0b56\u0b3e", "\u0dd9\u0dcf\u0dca", "\u0130stanbul",
    "\ufb03", "\u1e9e", "\u01c4\u01c5\u01c6", "\U0001d7d8\U0001d400",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f1e9\U0001f1ea", "\U00010400\U0002a6d6", "\U0010ffff", "\ufffd\uffff\ufffe",
    "\U000105c0\U00010d40", "\U0002ebf0", "\u1c89", "\ue000", "\u0378", "\U00011f00", "\U0001e4d0",
    "<|im_start|>", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|><|im_start|>", "a<|im_end|>b",
    "<|im_", "<|im_start|", "<<|im_end|>>", " <|im_end|> ", "a <|strip|> b", "a  <|strip|>  b",
    "<|strip|>", "  <|strip|>  <|strip|>  ", "\u3000<|strip|>\u2028x",
    "<|im_end|>  <|strip|>  <|im_end|>", "<tool_call>\n{}", "<tool_call>x</tool_call>",
    "<|strip|> zq", "<|strip|>  zq x", " zq  zq zq", "a zq\u3000 zq", "caf\u00e9s", "cafe\u0301s",
    "caf\u00e9", " caf\u00e9s caf\u00e9s", "caf\u00e9<|im_end|>s", "<|endoftext|>",
    "def f(x):\n    return x\n", "if (a) {\n\t\tb();\n}", "{\"a\": [1, 2]}", "http://a.b/c?d=e&f=g",
    "\\boxed{42}", "The quick brown fox.", "Hello, world!",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4", "\u0645\u0631\u062d\u0628\u0627",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "a" * 300, "ab" * 200, " " * 100, "\n" * 50 + "x",
    "=" * 77, "the the the", "aaaaaaab", "\u00e9" * 50,
]


def checksum(crc, ids):
    return zlib.crc32(array.array("i", [len(ids)] + ids).tobytes(), crc)


def encode(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def sweep(lists, end):
    """Returns [length, checksum] of the result of `lists` for the texts of each block of code
    points."""
    out = []
    for first in range(0, end, BLOCK):
        points = [p for p in range(first, first + BLOCK) if not 0xD800 <= p < 0xE000]
        total, crc = 0, 0
        for numbers in lists([places(chr(p)) for p in points]):
            total += len(numbers)
            crc = checksum(crc, numbers)
        out.append([total, crc])
    return out


def large(tokenizer, seed):
    out = []
    for i in range(LARGE_TEXTS):
        text = mixed(seed + i, LARGE_CHARS)
        ids = encode(tokenizer, [text])[0]
        out.append({"seed": seed + i, "text": zlib.crc32(text.encode()), "count": len(ids),
                    "ids": checksum(0, ids)})
    return out


def decodes(tokenizer, name, seed, count):
    chance = random.Random(seed)
    size = tokenizer.get_vocab_size()
    added = [tokenizer.token_to_id(token.content) for token in KINDS[name].added]
    out = []
    for i in range(count):
        top = 256 if i % 2 else size + 20
        ids = [chance.randrange(top) for _ in range(chance.randrange(1, 16))]
        if name in ("gguf_runs", "gguf_bytes") and i % 4 > 1:
            ids = [chance.choice(added) if chance.random() < 0.6 else id for id in ids]
        for skip in (False, True):
            text = tokenizer.decode(ids, skip_special_tokens=skip)
            if "\0" not in text:
                out.append({"ids": ids, "skip": skip, "text": text})
    return out


def peppered(added, chance):
    """Returns text with many added tokens beside each other, spaces, words and other characters."""
    between = ["", " ", "  ", "a", " b ", "\u00e9", "_", "\n", "\u2581", "9", "\u00dc"]
    out = mixed(chance.randrange(1 << 30), chance.randrange(0, 6))
    for _ in range(chance.randrange(1, 5)):
        content = chance.choice(added).content
        out += chance.choice(between) + chance.choice([content, content, content.lower(),
                                                       content.upper(), content[:-1]])
        out += chance.choice(between) + mixed(chance.randrange(1 << 30), chance.randrange(0, 4))
    return out


def expect(place, seed, count=150):
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    chance = random.Random(seed)
    texts = TRICKY + [mixed(chance.randrange(1 << 30), chance.randrange(1, 25))
                      for _ in range(count)]
    if KINDS[place.name].added:
        texts += [peppered(KINDS[place.name].added, chance) for _ in range(count)]
    texts = [text for text in texts if "\0" not in text]
    return {"tokenizers": tokenizers.__version__, "seed": seed,
            "strings": [{"text": text, "ids": ids}
                        for text, ids in zip(texts, encode(tokenizer, texts))],
            "decodes": decodes(tokenizer, place.name, seed, count * 8 // 15),
            "large": large(tokenizer, seed),
            "sweep": sweep(lambda texts: encode(tokenizer, texts), KINDS[place.name].sweep)}


def split(part, texts):
    """Returns the bytes of each word; ByteLevel has one character for each byte."""
    spelt = not isinstance(part, (pre.Digits, pre.Punctuation))
    return [[len(word) if spelt else len(word.encode()) for word, _ in part.pre_tokenize_str(text)]
            for text in texts]


def normalize(part, texts):
    return [list(part.normalize_str(text).encode()) for text in texts]


def steps(seed):
    """Checks words and normalized texts separately: ids do not show every boundary and merge
    others."""
    texts = [mixed(seed + i, LARGE_CHARS) for i in range(LARGE_TEXTS)]
    ways = {
        "gpt2": (split, pre.ByteLevel(add_prefix_space=False), 0x110000),
        "llama3": (split, byte_level(LLAMA3), 0x110000),
        "qwen2": (split, byte_level(QWEN2), 0x110000),
        "o200k": (split, byte_level(O200K), 0x30000),
        "tekken": (split, byte_level(TEKKEN), 0x30000),
        "numbers": (split, byte_level(NUMBERS), 0x30000),
        "han": (split, byte_level(HAN), 0x30000),
        "deepseek": (split, byte_level(DEEPSEEK), 0x30000),
        "digits": (split, pre.Digits(individual_digits=True), 0x30000),
        "punctuation": (split, pre.Punctuation(), 0x30000),
        "compose": (normalize, normalizers.NFC(), 0x110000),
        "nfd": (normalize, normalizers.NFD(), 0x30000),
        "nfkc": (normalize, normalizers.NFKC(), 0x30000),
        "nfkd": (normalize, normalizers.NFKD(), 0x30000),
        "lowercase": (normalize, normalizers.Lowercase(), 0x30000),
        "accents": (normalize, normalizers.StripAccents(), 0x30000),
    }
    return {"tokenizers": tokenizers.__version__, "seed": seed, **{
        name: [checksum(0, numbers) for numbers in way(part, texts)] +
        sweep(lambda texts, way=way, part=part: way(part, texts), end)
        for name, (way, part, end) in ways.items()}}


# ---- chat templates ------------------------------------------------------------------------------

def message(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The weather of a city, <now> & \"later\"",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {
        "type": "integer", "default": 1}}, "required": ["city"]}}}]

CHATS = [
    [message("user", "Hello")],
    [message("system", "Be brief."), message("user", "2+2?"), message("assistant", "4"),
     message("user", "  and\n\n3+3? ")],
    [message("system", ""), message("user", "<|im_start|>user {{ messages }} {% if %}")],
    [message("user", "\u00e9 \u4e16\u754c \U0001f600 \u2028 \\ \" ' <b>&amp;</b>\t")],
    [message("user", "How is it in Paris?"),
     message("assistant", "", tool_calls=[call("weather", {"city": "Paris", "days": 2, "f": 1.5})]),
     message("tool", "{\"sky\": \"clear\"}"), message("tool", "17 \u00b0C"),
     message("assistant", "Clear.", reasoning_content="The tool says so."),
     message("user", "Thanks"), message("assistant", "<think>\nhm\n</think>\n\nYou are welcome.")],
    [message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    [message("assistant", "first"), message("user", "x")],
]

KWARGS = [{}, {"enable_thinking": False}, {"date_string": "1 Jan 2030", "style": {"a": [1, None]}}]
TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}


def templates(folder):
    """Returns the results of transformers for each template and chat; null if it raises."""
    plain = Tokenizer(models.BPE())
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **TOKENS)
    out = []
    for path in sorted(folder.glob("*.jinja")):
        fast.chat_template = path.read_text(encoding="utf-8")
        for n, chat in enumerate(CHATS):
            for tools in (None, TOOLS):
                kwargs = KWARGS[(n + (tools is None)) % len(KWARGS)]
                for prompt in (False, True):
                    try:
                        text = fast.apply_chat_template(chat, tools=tools, tokenize=False,
                                                        add_generation_prompt=prompt, **kwargs)
                    except Exception:
                        text = None
                    out.append({"template": path.name, "messages": chat, "tools": tools,
                                "kwargs": kwargs, "prompt": prompt, "text": text})
    out.sort(key=lambda case: (case["template"], KWARGS.index(case["kwargs"])))
    return {"transformers": transformers.__version__, "tokens": TOKENS, "cases": out}


# ---- files ---------------------------------------------------------------------------------------

def dump(data):
    """Returns JSON with one element of a long list per line."""
    lines = [f"{json.dumps(key)}:" + (
        "[\n" + ",\n".join(json.dumps(item, separators=(",", ":")) for item in value) + "]"
        if isinstance(value, list) else json.dumps(value)) for key, value in data.items()]
    return "{" + ",\n".join(lines) + "}\n"


def check(folder):
    bad = 0
    for place in sorted(p.parent for p in folder.glob("*/expect.json")):
        text = (place / "expect.json").read_text()
        if dump(expect(place, json.loads(text)["seed"])) != text:
            print(f"{place.name}/expect.json is not what tokenizers {tokenizers.__version__} says")
            bad += 1
    text = (folder / "steps.json").read_text()
    if dump(steps(json.loads(text)["seed"])) != text:
        print(f"steps.json is not what tokenizers {tokenizers.__version__} says")
        bad += 1
    if dump(templates(folder / "templates")) != (folder / "templates.json").read_text():
        print(f"templates.json is not what transformers {transformers.__version__} says")
        bad += 1
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--strings", type=int, default=150,
                        help="random strings of a kind; half the number of lists of ids, which"
                        " are decoded with and without special tokens")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "tokenizer")
    parser.add_argument("--check", type=pathlib.Path, nargs="?", const=HERE / "tokenizer")
    everything = [*KINDS, "steps", "templates"]
    parser.add_argument("kinds", nargs="*", metavar="KIND", choices=[[], *everything])
    args = parser.parse_args()
    if args.check:
        return 1 if check(args.check) else 0
    wanted = args.kinds or everything
    for name in filter(wanted.__contains__, KINDS):
        write(args.out, name, train(name, args.seed))
        data = expect(args.out / name, args.seed, args.strings)
        (args.out / name / "expect.json").write_text(dump(data))
    if "steps" in wanted:
        (args.out / "steps.json").write_text(dump(steps(args.seed)))
    if "templates" in wanted:
        if args.out != HERE / "tokenizer":
            shutil.copytree(HERE / "tokenizer/templates", args.out / "templates",
                            dirs_exist_ok=True)
        (args.out / "templates.json").write_text(dump(templates(args.out / "templates")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
