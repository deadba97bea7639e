# launch_flags.py - makes keys of a recipe of the words behind train.py.
#
# The rules are those of argparse: the last of repeated flags wins, and all words after a flag that
# do not begin with two dashes are its values. Unknown words may set again what stands before them.
# The request has the table of flags (flag_aliases.def) and the keys; the text is an argument within
# single quotes.
# SPDX-License-Identifier: Apache-2.0
UNKNOWN, LOST, CHOSEN, MOOT = range(4)  # kinds of notes, as in miles_import.h
DEFAULT = f"Miles{QUOTE} default"
AGAIN = "words behind it are unknown, and may set it again"
PLUGIN = re.compile(r"/|\.(py|so)$")
DECIMAL = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def printable(path):
    """The name of a file need not be UTF-8."""
    return path.encode("utf-8", "replace").decode()


def place(word):
    return {"file": printable(word.file), "line": word.line}


def is_flag(text):
    return re.match(r"--[^0-9.]", text, re.S) is not None


def is_same(text, only):
    number = DECIMAL.fullmatch(text) and DECIMAL.fullmatch(only)
    return text == only or bool(number and float(text) == float(only))


class Flag:
    """A flag and its values; `why` is the reason if one of them is unknown."""

    def __init__(self, word, values):
        self.word = word
        self.name, equals, value = word.text[2:].partition("=")
        self.values = [value] if equals else [w.text for w in values]
        shown = [w.raw if w.why else w.text for w in [word, *values]]
        self.shown = " ".join(s[:120] for s in shown[:2]) + (" ..." if len(shown) > 2 else "")
        self.why = next((w.why for w in [word, *values] if w.why), None)
        if not self.why and any(w.maybe for w in [word, *values]):
            self.why = CONDITIONAL


def flags_of(words):
    """Gives the flags and the words without a flag in their order, each as (flag or word, spoils):
    a word that spoils may set again what stands before it."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not is_flag(word.text) or (word.why and "=" not in word.text):
            yield word, word.why and not (word.why in (UNSET, SEQ) and word.many)
            continue
        values = []
        while at < len(words) and not is_flag(words[at].text) and not (
                words[at].why and re.search(r"\[[@*]\]|\$[@*]", words[at].raw)):
            values.append(words[at])
            at += 1
        yield Flag(word, values), any(
            w.many and w.why not in (UNSET, SEQ) or word.maybe and not w.maybe
            for w in [word, *values])


class Import:
    """Values of the recipe, {key: (text, flag or None)}, and notes about flags."""

    def __init__(self, words, asynchronous, aliases, keys):
        self.values, self.notes, self.words, self.keys = {}, [], words, keys
        self.asynchronous, self.rows, self.prefixes = asynchronous, {}, []
        self.flags = {miles: key for key, (miles, _) in [*keys.items()][::-1] if miles}
        for names, *row in aliases:
            for name in names.split():
                if name.endswith("*"):
                    self.prefixes.append((name[:-1], row))
                else:
                    self.rows.setdefault(name, row)

    def note(self, kind, shown, why, word=None):
        where = place(word) if word else {}
        self.notes.append({"kind": kind, "flag": shown, "why": why, **where})

    def note_flag(self, kind, flag, why):
        self.note(kind, flag.shown, why, flag.word)

    def find(self, name):
        """(how, what, sentence) of a flag, or None; a full name goes before a key."""
        key = name if name in self.keys else self.flags.get(name)
        if name in self.rows or not key:
            return self.rows.get(name) or next(
                (row for start, row in self.prefixes if name.startswith(start)), None)
        return "KEY", key, ""

    def read(self):
        for item, spoils in flags_of(self.words):
            if spoils:
                for _, flag in self.values.values():
                    self.note_flag(UNKNOWN, flag, AGAIN)
                self.values = {}
            if isinstance(item, Flag):
                self.read_flag(item)
            else:
                self.note(UNKNOWN if item.why else LOST, item.raw if item.why else item.text,
                          item.why or "a word that belongs to no flag", item)

    def read_flag(self, flag):
        how, what, sentence = self.find(flag.name) or ("LOST", "", "unknown flag")
        one = flag.values[0] if len(flag.values) == 1 else ""
        if how in ("MOOT", "LOST"):
            self.note_flag(MOOT if how == "MOOT" else LOST, flag, sentence)
        elif flag.why:
            self.note_flag(UNKNOWN, flag, flag.why)
            if what in self.values and (flag.name == what or self.values[what][1].name != what):
                del self.values[what]
        elif how == "ONLY":
            self.note_flag(MOOT if is_same(one, what) else LOST, flag, sentence)
        elif how == "PLUGIN" and what == "dynamic-sampling-filter-path" and one.endswith(
                "check_reward_nonzero_std"):
            self.set("dynamic-sampling-filter", flag, "nonzero_std")
        elif how == "PLUGIN" and not PLUGIN.search(one):
            self.note_flag(LOST, flag, sentence)
        elif not flag.values and not self.keys[what][1]:
            self.note_flag(LOST, flag, "it has no value in the script")
        elif len(flag.values) > 1 and how not in ("STRINGS", "WORDS", "COMMAS"):
            self.note_flag(LOST, flag, "it has several values; the key takes one")
        else:
            self.set(what, flag, self.joined(how, flag.values) if flag.values else "true")

    @staticmethod
    def joined(how, values):
        if how == "STRINGS":
            return json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        if how == "WORDS":
            return " ".join(f"\"{v}\"" if not v or " " in v or "\t" in v else v for v in values)
        return ",".join(values)

    def set(self, key, flag, text):
        """Sets a key; a flag with its own name goes before another name of it."""
        if key in self.values and flag.name != key and self.values[key][1].name == key:
            self.note_flag(MOOT, flag, "the script has the key itself, too")
        else:
            self.values[key] = text, flag

    # Values that Miles implies.

    def text(self, key):
        return self.values.get(key, ("",))[0]

    def has(self, *names):
        return any(not w.why and not w.maybe and w.text in names for w in self.words)

    def pick(self, key, text, why):
        """Sets a key that the script does not have."""
        if key not in self.values:
            self.values[key] = text, None
            self.note(CHOSEN, f"{key} = {text}", why)

    def drop(self, key, kind, why):
        text, flag = self.values.pop(key)
        if flag:
            self.note_flag(kind, flag, why)
        else:
            self.notes = [n for n in self.notes if n["flag"] != f"{key} = {text}"]

    def weights(self):
        """Drops folders of Megatron: those of hf-checkpoint and of save are the defaults."""
        hf = self.text("hf-checkpoint").rstrip("/")
        for key in ("load", "ref-load", "critic-load"):
            path = self.text(key)
            if path and key == "load" and path == self.text("save"):
                self.drop(key, MOOT, "the folder of save is its default")
            elif path and hf and path.startswith(hf):
                self.drop(key, MOOT, "the weights of hf-checkpoint are its default")
            elif path:
                self.drop(key, LOST, self.find(key)[2])

    def window(self):
        """The window of the profiler; an end that is missing in the script has the default."""
        ends, why = ("profile-step-start", "profile-step-end"), None
        if not any(key in self.values for key in ends):
            return
        self.pick(ends[0], "10", DEFAULT)
        self.pick(ends[1], "12", DEFAULT)
        first, last = [self.text(key) for key in ends]
        if not self.has("--use-pytorch-profiler", "--profile"):
            why = "without use-pytorch-profiler Miles profiles no step, either"
        elif DECIMAL.fullmatch(first) and DECIMAL.fullmatch(last) and float(first) >= float(last):
            why = ("no step lies between profile-step-start and profile-step-end, which are 10 and "
                   "12 where the script does not say them")
        for key in ends if why else ():
            self.drop(key, MOOT, why)

    def defaults(self):
        self.weights()
        if self.has("--colocate") and "rollout-num-gpus" in self.values:
            self.drop("rollout-num-gpus", MOOT, "with colocate Miles ignores it, too")
        if self.asynchronous:
            self.pick("rollout-lag", "1", "the schedule of train_async.py")
        ranks = [self.text("tensor-model-parallel-size")]
        if "rollout-num-gpus" in self.values:
            ranks.append(self.text("rollout-num-gpus-per-engine"))
        for count in ("8", "4", "2"):
            if count in ranks:
                self.pick("logical-tp", count, "so many ranks can divide a layer; the sums are "
                          "made of as many pieces")
        self.window()
        self.pick("device", "cuda", "Miles runs on GPUs")
        self.pick("numerics", "sm90", "the arithmetic of an H200, which CPUs have, too; ieee is "
                  "faster on those")
        self.pick("rollout-skip-special-tokens", "false", DEFAULT)
        if "use-kl-loss" in self.values or not is_same(self.text("kl-coef") or "0", "0"):
            self.pick("kl-loss-type", "k1", DEFAULT)
        if "lr-decay-style" not in self.values:
            self.note(LOST, "--lr-decay-style", "without it Megatron decays linearly over all "
                      "steps, here lr is constant: set lr-decay-style and lr-decay-iters")


def first(path, text, aliases, keys):
    sys.setrecursionlimit(20000)
    path = os.fsdecode(bytes(path))
    try:
        shell = Shell(path)
        done = Import(*words_of(shell, decode(bytes(text), path)), aliases, keys)
    except Refused as error:
        return {"refused": printable(str(error))}
    except RecursionError:
        return {"refused": printable(f"{os.path.basename(path)}: commands are nested too deep")}
    for (file, line), raw in shell.unread.items():
        done.note(LOST, raw, "this file of source is not beside the script: its flags are missing",
                  Field("", None, False, False, raw, file, line))
    done.read()
    done.defaults()
    values = [{"key": key, "text": text, **({} if not flag else {
        "flag": flag.shown, **place(flag.word)})}
        for key, (text, flag) in done.values.items()]
    return {"values": values, "notes": done.notes}


if __name__ == "__main__":
    serve(MEMORY, first, None, lambda error: f"{type(error).__name__}: {error}")  # noqa: F821
