# shell_values.py - what is known of variables, and the words that bash makes of them.
#
# A value is a text, an Array or Unknown. What bash may assign on two ways is joined: equal values
# stay, others are unknown. Variables of the environment and arguments are unknown, or count as not
# set where the script gives a default. The text is an argument within single quotes.
# SPDX-License-Identifier: Apache-2.0
# `path` is the file or folder that it is, for `source`; `one`: it is one word without blanks;
# `fixed`: it does not depend on the current folder.
# ENV: not assigned, NONE: certainly unset.
Unknown = namedtuple("Unknown", "why path one fixed", defaults=[None, False, False])
ENV, NONE, NO_TEXT = "environment", "unset", Unknown(COMPUTED)
ENV, NONE = (ENV,), (NONE,)


class Array(tuple):
    """Words of an array or of a command."""


# A word. text: its value, or what is known of its beginning; why: the reason if it is unknown;
# many: it may be any number of words; maybe: it may be missing, or be there several times.
Field = namedtuple("Field", "text why many maybe raw file line")

# Variables that bash or a login sets, and those that change how bash reads the script.
OWN = re.compile(r"HOME|USER|LOGNAME|SHELL|PWD|OLDPWD|PATH|TERM|LANG|LC_\w+|HOSTNAME|COLUMNS|LINES|"
                 r"_|IFS|TMPDIR|OPTARG|OPTIND|OPTERR|REPLY|DIRSTACK|PIPESTATUS|MAPFILE|COMP_\w+|"
                 r"COPROC")
ALIVE = re.compile(r"RANDOM|SRANDOM|SECONDS|EPOCH\w+|LINENO|BASH_\w+|BASHPID|FUNCNAME|GROUPS|"
                   r"HISTCMD|BASH|SHLVL|PIPESTATUS|DIRSTACK|_|OSTYPE|HOSTTYPE|MACHTYPE")
SWITCH = re.compile(r"POSIXLY_CORRECT|SHELLOPTS|BASHOPTS|BASH_COMPAT|BASH_ENV|UID|EUID|PPID|PS4|"
                    r"BASH_VERSINFO|FUNCNEST|CDPATH")
FAILS = re.compile(r"[/%]=?\s*(?!0*[1-9])\S|\d[A-Za-z_.]|\b0\d*[89]")  # also a division by zero
NUMBER = re.compile(r"\s*[-+]?\d*\s*")
ASSIGNS = re.compile(r"\+\+|--|<<=|>>=|(?<![=!<>])=(?!=)")
GLOB = re.compile(r"[*?[\\]")


def merge(a, b):
    """What one of two arrays is."""
    same = len(a) if b[:len(a)] == a else 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    rest = [w._replace(maybe=True) for w in a[same:] + b[same:]]
    if len(a) + len(b) > MAX_WORDS:
        raise Refused(f"{a[0].file}: more than {MAX_WORDS} words")
    return Array(a[:same] + tuple(rest))


def join(a, *others):
    """What is known of the variables if one of several ways was taken; None is a way that ended."""
    for b in others:
        if a is None or b is None or a is b:
            a = b if a is None else a
            continue
        out = {}
        for key in [*a, *(k for k in b if k not in a)]:
            x, y = a.get(key, ENV), b.get(key, ENV)
            arrays = [v if isinstance(v, Array) else Array() for v in (x, y)]
            if x is y or x == y:
                out[key] = x
            elif any(isinstance(v, Array) for v in (x, y)) and all(
                    isinstance(v, Array) or v in (ENV, NONE) for v in (x, y)):
                out[key] = merge(*arrays)
            else:
                one = all(v.one if isinstance(v, Unknown) else
                          isinstance(v, str) and bool(PLAIN.fullmatch(v)) for v in (x, y))
                x = Unknown(UNSET) if x == ENV and y == Unknown(UNSET) else x
                out[key] = Unknown(x.why if isinstance(x, Unknown) else CONDITIONAL, None, one)
        a = out
    return a


class Values:
    """Expands words; env has the variables, and NAME() for functions, "NAME r" for readonly ones,
    "NAME o" for those with an odd attribute, and @ for arguments."""

    def __init__(self, path):
        Parser.named, Parser.used = set(), set()
        self.path, self.folder = path, os.path.dirname(path) or "."
        self.file, self.files, self.steps, self.calls, self.size = path, 0, 0, 0, 0
        self.trains, self.unread, self.ends, self.dropped = {}, {}, [], None
        self.returns = self.breaks = self.locals = None

    # Expansion.

    def dirty(self, env, what):
        env.setdefault("#", Unknown(f"unknown what is set after {what}"))

    def forget(self, env, name, why=COMPUTED):
        """Makes the variable unknown."""
        self.assign(env, name, Unknown(why))

    def get(self, env, name):
        if "#" in env:
            return env["#"]
        if ALIVE.fullmatch(name):
            return self.beside(env, self.file if name == "BASH_SOURCE" else None)
        if env.get(name + " o"):
            return Unknown(COMPUTED)
        if name not in env and (OWN.fullmatch(name) or SWITCH.fullmatch(name)):
            return Unknown(UNSET)
        if name not in env and "#env" in env:
            return env["#env"]
        return env.get(name, ENV)

    @staticmethod
    def beside(env, path):
        """The name of a file of the script, which counts from the folder in which it started."""
        return Unknown(COMPUTED, None if "#cd" in env else path)

    def assign(self, env, name, value, append=False):
        old = self.get(env, name)
        if env.get(name + " r") or SWITCH.fullmatch(name):
            return self.dirty(env, f"{name} is assigned")
        if name == "IFS":
            env["#ifs"] = True
        if env.get(name + " o") or (ALIVE.fullmatch(name) and name != "_") or name == "OPTIND":
            for word in value if isinstance(value, Array) else [value]:
                text = word.text if isinstance(word, Field) and not word.why else word
                self.math(env, [("text", text, "q") if isinstance(text, str) else ("odd", "", "q")])
        if append and old in (ENV, NONE) and isinstance(value, Array):
            old = Array()
        if append and isinstance(value, Array):
            if isinstance(old, Unknown):
                old = Array([Field("", old.why, True, False, name, self.file, 0)])
            value = Array((*old, *value)) if isinstance(old, Array) else Unknown(COMPUTED)
        elif append and isinstance(old, str) and isinstance(value, str):
            value = old + value
        elif append and old == ENV:
            value = Unknown(UNSET)
        elif (append and old != NONE) or (isinstance(old, Array) and isinstance(value, str)):
            value = Unknown(COMPUTED)
        if isinstance(old, Unknown) and isinstance(value, str):
            env[name + " a"] = True  # it may have been an array, whose first word changes
        self.size += len(value)
        if self.size > MAX_BYTES * 16 or len(value) > (
                MAX_WORDS if isinstance(value, Array) else MAX_BYTES):
            raise Refused(f"{self.file}: more than {MAX_WORDS} words or {MAX_BYTES} bytes of text")
        env[name] = value

    def perhaps(self, env, step, *args):
        """Does what may be done or not."""
        other = dict(env)
        step(other, *args)
        env.update(join(other, dict(env)))

    def param(self, env, part):
        """The value of an expansion of a variable, or the pieces of a default."""
        name, index, op, arg = part
        every = index in ("@", "*") or name in ("@", "*")
        if index and not every:
            self.math(env, [("text", index, "q")])
        if op[-1:] == "@" and any("P" in v for _, v, _ in arg):
            self.dirty(env, "${NAME@P}")
        if op.startswith("!"):
            if not every and NAME.fullmatch(name):
                self.drop(env)
                self.target(env, self.get(env, name))
            self.perhaps(env, self.pieces, arg)
            if "=" in op:
                self.dirty(env, "an assignment by ${!NAME=}")
            return NO_TEXT
        if op == "{fd}":
            self.forget(env, name)
            return NO_TEXT
        if name in ("@", "*"):
            value = env.get("#", env.get("@", ENV))
        elif name == "0":
            value = self.beside(env, self.path)
        elif name.isdigit():
            value = ENV if env.get("#", env.get("@", ENV)) == ENV else Unknown(COMPUTED)
        elif not NAME.fullmatch(name):
            return NO_TEXT
        else:
            value = self.get(env, name)
            if not every and name not in env and isinstance(value, Unknown):
                value = Unknown(UNSET, value.path)
            if every and isinstance(value, str) and name + " a" in env:
                value = NO_TEXT
            elif every and isinstance(value, str):
                value = Array([Field(value, None, False, False, value, self.file, 0)])
            elif (index or isinstance(value, Array)) and not every:
                value = value if isinstance(value, Unknown) and index == "0" else NO_TEXT
        if every and value == NONE:
            value = Array()
        return self.operate(env, name, value, op, arg, every)

    def operate(self, env, name, value, op, arg, every):
        bare = op.lstrip(":")
        absent = value in (ENV, NONE) or (":" in op and value in ("", Array())) or (
            every and value == Array())
        if op == "":
            return value
        if bare in ("-", "="):
            if isinstance(value, Unknown):
                self.perhaps(env, lambda e: self.assign(e, name, self.scalar(e, arg)) if bare == "="
                             else self.pieces(e, arg))
            elif isinstance(value, Array) and any(w.maybe or w.why for w in value):
                return Unknown(CONDITIONAL)
            elif absent and bare == "=":
                self.assign(env, name, self.scalar(env, arg))
                return self.get(env, name)
            elif absent and (arg or value != ENV):  # an empty default leaves it to the environment
                return self.pieces(env, arg)
            return value
        if bare == "+":
            if value in (NONE, "", Array()):
                return "" if absent else self.pieces(env, arg)
            sure = isinstance(value, str) or (
                isinstance(value, Array) and not any(w.maybe or w.many for w in value))
            if sure:
                return self.pieces(env, arg)
            self.perhaps(env, self.pieces, arg)
            return Unknown(UNSET if value == ENV else CONDITIONAL)
        if bare == "?":
            return Unknown(UNSET) if absent else value
        if op == ":":
            self.math(env, arg)
        else:
            self.perhaps(env, self.pieces, arg)
        return Unknown(value.why) if isinstance(value, Unknown) else NO_TEXT

    def math(self, env, parts):
        """What an arithmetic expression may assign becomes unknown."""
        text = self.scalar(env, parts)
        if not isinstance(text, str):
            self.drop(env)
            self.forget_named(env)
            if ASSIGNS.search("".join(v for k, v, _ in parts if k == "text")):
                self.dirty(env, "arithmetic with an unknown text")
            return NO_TEXT
        names = NAME.findall(text)
        if any(env.get(n, ENV) not in (ENV, NONE) and not (
                isinstance(env[n], str) and NUMBER.fullmatch(env[n])) for n in names):
            self.drop(env)
            self.forget_named(env)
        if FAILS.search(text):
            self.drop(env)
        for name in names if ASSIGNS.search(text) else ():
            self.forget(env, name)
        return NO_TEXT

    def drop(self, env):
        """Here an expansion may fail, which leaves out the commands up to the end of the line."""
        self.steps += len(env) // 64
        self.dropped = join(self.dropped, dict(env))

    def forget_named(self, env):
        """Arithmetic evaluates the text of a variable, which may assign what the text names."""
        names = sorted(Parser.named & (Parser.used | env.keys()))
        self.steps += len(names) // 64
        for name in names:
            old = env.get(name, ENV)
            if not isinstance(old, Unknown) and name + " r" not in env:
                env[name] = Unknown(UNSET if old == ENV else COMPUTED)

    def target(self, env, value):
        """The name of a variable may have an index, which is arithmetic."""
        if isinstance(value, str) and "[" in value:
            self.math(env, [("text", value, "q")])
        elif isinstance(value, Unknown):
            self.forget_named(env)

    def folder_of(self, env, node):
        """The folder that $(cd "$(dirname "$0")" && pwd) or the like names, as an Unknown."""
        if node[0] == "all" and len(node[1]) == 1:
            return self.folder_of(env, node[1][0])
        if node[0] == "if" and node[2][0][0] == "simple" and [
                w.raw for w in node[2][0][1]] == ["pwd"]:
            return self.folder_of(env, node[1])
        if node[0] != "simple" or len(node[1]) < 2:
            return NO_TEXT
        value = self.scalar(env, node[1][-1].parts)
        words = [w.raw for w in node[1][:-1]]
        if not isinstance(value, Unknown) or not value.path:
            return NO_TEXT
        if words in (["cd"], ["cd", "--"], ["realpath"], ["readlink", "-f"]):
            return value._replace(fixed=True)
        if words in (["dirname"], ["dirname", "--"]):
            return value._replace(path=os.path.dirname(value.path) or ".")
        return NO_TEXT

    def pieces(self, env, parts):
        """Parts with their values: (kind, value, mode); the kinds are text, glob, braces, unknown
        and words."""
        out = []
        for kind, value, mode in parts:
            if kind == "param":
                star, each = ("*" in value[:2], "@" in value[:2])
                value = self.param(env, value)
                if star and isinstance(value, Array) and mode == "q":
                    value = self.joined(env, value)
                mode = "s" if each and not isinstance(value, Array) else mode
            elif kind == "run":
                found = self.folder_of(env, value)
                path = found.path
                self.apart(env, value)
                count = value[1][0][1] if [n[0] for n in value[1]] == ["simple"] else []
                value = Unknown(SEQ if count and count[0].raw == "seq" else COMPUTED, path,
                                bool(path and PLAIN.fullmatch(os.path.abspath(path))), found.fixed)
            elif kind == "math":
                value = self.math(env, value)
            elif kind == "odd":
                value = Unknown(value)
            else:
                out.append((kind, value, mode))
                continue
            if isinstance(value, list):
                out += value
            elif isinstance(value, Array):
                out.append(("words", value, mode))
            elif isinstance(value, str):
                out.append(("text", value, "q" if mode == "q" else "s"))
            else:
                value = Unknown(UNSET) if value == ENV else value
                out.append(("text", "", mode) if value == NONE else ("unknown", value, mode))
        return out

    @staticmethod
    def joined(env, words):
        if "#ifs" in env or any(w.why or w.maybe for w in words):
            return Unknown(next((w.why for w in words if w.why), CONDITIONAL))
        return " ".join(w.text for w in words)

    def scalar(self, env, parts):
        """The value that an assignment gives."""
        text, unknown = "", None
        for kind, value, _ in self.pieces(env, parts):
            if kind == "words":
                value = self.joined(env, value)
            if kind == "unknown" or isinstance(value, Unknown):
                unknown = value if not text and not unknown else Unknown(value.why)
            elif unknown and unknown.path and kind == "text":
                unknown = unknown._replace(path=unknown.path + value, one=unknown.one and bool(
                    PLAIN.fullmatch(value)))
            else:
                text += value if kind != "braces" else ""
        if not unknown and ("\r" in text or "\ufffd" in text):
            return Unknown(NOT_TEXT)
        return unknown or text

    def expand(self, env, word):
        """The words that a word of the script becomes."""
        out, text, why, many, active = [], "", None, False, False

        def field(text, why, many):
            if not why and ("\r" in text or "\ufffd" in text):
                why = NOT_TEXT
            return Field(text, why, many, False, word.raw[:200], word.file, word.line)

        pieces = self.pieces(env, word.parts)
        if word.array is not None:
            return [field("", COMPUTED, True)]
        if word.raw in ("[", "[["):
            return [field(word.raw, None, False)]
        alone = [v for k, v, _ in pieces if k != "text" or v][1:] == []
        for kind, value, mode in pieces:
            if kind == "braces":
                return [field("", BRACES, True)]
            if kind == "words" and alone:
                for w in value:
                    out += [w] if mode == "q" else self.split(env, w)
            elif kind != "text" or (mode == "s" and (
                    "#ifs" in env or GLOB.search(value))):
                why = why or (value.why if kind == "unknown" else COMPUTED)
                many |= kind == "words" or (mode != "q" and not (kind == "unknown" and value.one))
                active = True
            elif mode == "s" and not why:
                chunks = re.split(r"[ \t\n]+", value)
                for i, chunk in enumerate(chunks):
                    if i > 0 and active:
                        out.append(field(text, None, False))
                    text, active = (chunk, bool(chunk)) if i > 0 else (
                        text + chunk, active or bool(chunk))
            else:
                text += value if not why else ""
                active = active or mode == "q" or bool(value)
                many |= mode == "s" and bool(re.search(r"\s", value))
        if pieces and any(k == "words" for k, _, _ in pieces) and not text and not why:
            return out
        if active or not word.parts:
            out.append(field(text, why, many))
        return out

    @staticmethod
    def split(env, word):
        """The words of an unquoted ${NAME[@]}."""
        if word.why or "#ifs" in env or GLOB.search(word.text):
            return [word._replace(why=word.why or COMPUTED, many=True)]
        return [word._replace(text=text) for text in word.text.split(None)] if word.text else []

    def expand_all(self, env, words):
        out = []
        for word in words:
            out += self.expand(env, word)
            if len(out) > MAX_WORDS:
                raise Refused(f"{self.file}: more than {MAX_WORDS} words")
        return out
