# shell_flow.py - follows the commands of a launch script, without executing them.
#
# The status of a command is never known, so that each way of a condition and every number of rounds
# of a loop counts as possible. A command that may change how bash reads the rest, such as a trap or
# an eval of an unknown text, makes all variables unknown. The text is an argument within single
# quotes.
# SPDX-License-Identifier: Apache-2.0
class Shell(Values):
    """Follows commands. Each step returns the variables after it, or None if the way ends there."""

    def run(self, node, env):
        if env is None:
            return None
        self.steps += 1 + len(env) // 64
        if self.steps > MAX_STEPS:
            raise Refused(f"{self.file}: there are too many commands to follow")
        return getattr(self, "run_" + node[0])(env, *node[1:])

    def run_all(self, env, nodes):
        for node in nodes:
            if node == LINE:
                env, self.dropped = join(env, self.dropped), None
            else:
                env = self.run(node, env)
        return env

    def run_dirty(self, env, what):
        self.dirty(env, what)
        return env

    def run_if(self, env, test, bodies):
        """The status of a command is never known: each of the ways may be taken."""
        env = self.run(test, env)
        self.steps += len(env or ()) // 64
        return join(*[self.run(body, env and dict(env)) for body in bodies])

    def apart(self, env, node):
        """Follows commands of a process of its own, whose variables are lost."""
        kept = self.returns, self.breaks, self.ends, self.dropped
        self.returns, self.breaks = [None if k is None else [] for k in kept[:2]]
        self.ends, self.dropped = [], None
        self.run(node, dict(env))
        self.returns, self.breaks, self.ends, self.dropped = kept

    def run_apart(self, env, nodes):
        for node in nodes:
            self.apart(env, node)
        return env

    def run_redirected(self, env, node, extra, risky):
        self.expand_all(env, extra)
        if risky:  # the file may not be there, and the command is left out
            return join(self.run(node, dict(env)), env)
        return self.run(node, env)

    def run_function(self, env, name, node):
        if name in ("exit", "echo", "kill", "true", ":"):  # a trap may have it
            self.dirty(env, f"the function {name}")
        env[name + "()"] = (node, self.file)
        return env

    def run_loop(self, env, name, body):
        """A loop of an unknown number of rounds."""
        kept, self.breaks = self.breaks, []
        for turn in range(12):
            again = dict(env)
            if name:
                self.forget(again, name, CONDITIONAL)
            after = join(env, self.run(body, again), *self.breaks)
            for key in after if turn else ():
                old, new = env.get(key, ENV), after[key]
                if isinstance(old, Array) and isinstance(new, Array) and {
                        (w.text, w.why) for w in new} == {(w.text, w.why) for w in old}:
                    after[key] = old
                elif old != new and not isinstance(new, Array):
                    after[key] = Unknown(CONDITIONAL)
            if after == env:
                break
            env = after
        else:
            self.dirty(env, "a loop")
        self.breaks = kept
        return env

    def run_math(self, env, expression):
        kept = self.dropped
        self.math(env, expression)
        if all(kind == "text" for kind, _, _ in expression):  # only its status says so
            self.dropped = kept
        return env

    # Commands.

    def run_simple(self, env, words, extra, risky, line):
        self.expand_all(env, extra)
        if risky:
            return join(self.command(dict(env), words, line), env)
        return self.command(env, words, line)

    def command(self, env, words, line):
        assigned = []
        while words and words[0].name:
            assigned, words = assigned + [words[0]], words[1:]
        if not words:
            for word in assigned:
                self.assign_word(env, word)
            return env
        if not assigned:
            return self.call(env, words, line)
        return self.call_with(env, assigned, words, line)

    def value_of(self, env, word):
        if word.array is None:
            return self.scalar(env, word.parts[2:])
        fields, indexed = self.expand_all(env, word.array), False
        for each in word.array:
            if each.raw.startswith("["):
                indexed = self.math(env, each.parts)
        return indexed or Array(fields)

    def assign_word(self, env, word):
        value = self.value_of(env, word)
        if word.index is not None:
            self.math(env, [("text", word.index, "q")])
            self.drop(env)
            value = Unknown(COMPUTED)
        self.assign(env, word.name, value, word.append)

    def call_with(self, env, assigned, words, line):
        """A command with variables of its own: NAME=value command."""
        fields, before = self.expand_all(env, words), dict(env)
        name = "" if not fields or fields[0].why else fields[0].text
        inside = name + "()" in env or name in ("source", ".", "eval")
        if inside:
            for word in assigned:
                self.assign_word(env, word)
        own = {word.name: env.get(word.name, ENV) for word in assigned}
        declares = name in DECLARE and not inside
        env = self.call(env, words, line) if declares else self.call_fields(
            env, fields, words, line)
        if env is not None and name in ("builtin", "command"):
            self.dirty(env, f"NAME=value {name}")
        for name in own if self.dropped is not None else ():
            self.forget(self.dropped, name)
        for name, value in own.items() if env is not None and (inside or declares) else ():
            if env.get(name + " r") and not before.get(name + " r"):
                self.dirty(env, f"{name} is readonly")
            elif declares or env.get(name, ENV) != value or before.get(name, ENV) == ENV:
                self.forget(env, name)
            else:
                env[name] = before[name]
        return env

    def call(self, env, words, line):
        fields = self.expand(env, words[0])
        declares = words[0].raw in DECLARE
        if declares and words[0].raw + "()" not in env:
            return self.declare(env, words[0].raw, words[1:])
        fields += self.expand_all(env, words[1:])
        if "\\\n" in words[0].raw and "=" in words[0].raw:
            self.dirty(env, words[0].raw)
        return self.call_fields(env, fields, words, line)

    def call_fields(self, env, fields, words, line, functions=True):
        if not fields:
            return env
        name = fields[0].text
        if fields[0].why or fields[0].maybe:
            self.find_train(fields, line)
            self.dirty(env, f"{words[0].raw}, a command that is not known")
            return env
        if functions and name + "()" in env:
            return self.call_function(env, env[name + "()"], fields)
        step = getattr(self, "do_" + BUILTIN.get(name, name), None) if name in BUILTINS else None
        if step:
            return step(env, fields, words, line)
        if name not in INERT:
            self.find_train(fields, line)
        return env

    def call_function(self, env, found, fields):
        if isinstance(found, Unknown) or self.calls >= 40:
            return self.run_dirty(env, f"{fields[0].text}, a function that is not known")
        kept = self.returns, self.breaks, self.file, self.locals, env.get("@", ENV)
        self.returns, self.breaks, self.file, self.locals = [], None, found[1], set()
        self.calls += 1
        env["@"] = Array(fields[1:])
        env = join(self.run(found[0], env), *self.returns)
        locals_ = self.locals
        self.returns, self.breaks, self.file, self.locals, args = kept
        self.calls -= 1
        for way in [env, self.dropped]:
            if way is not None:
                way["@"] = args
                for name in locals_:
                    self.forget(way, name)
        return env

    def find_train(self, fields, line):
        """Keeps the words behind train.py, if the command starts it."""
        if fields[0].text in ("xargs", "parallel", "find"):
            fields = [*fields, fields[0]._replace(why="it may add words", many=True)]
        python = bool(fields[0].why)
        for i, field in enumerate(fields):
            file = os.path.basename(field.raw.strip("\"" + QUOTE) if field.why else field.text)
            if python and file in TRAIN:
                key, words = (self.file, line, fields[0].raw), Array(fields[i + 1:])
                asynchronous = file == TRAIN[1]
                if key in self.trains and self.trains[key][0] != words:
                    words = merge(self.trains[key][0], words)
                self.trains[key] = words, asynchronous
                return
            python = python or "python" in field.text or "torchrun" in field.text
        text = "\n".join(w.text or w.raw for w in fields if re.search(r"\s", w.text or w.raw))
        if re.search(r"python\S*\s.*\btrain(_async)?\.py", text):
            self.trains[self.file, line, fields[0].raw] = Array([NO_START]), False

    # Builtins.

    def declare(self, env, command, words):
        options = ""
        before = [self.value_of(env, word) if word.name else self.expand(env, word)
                  for word in words]  # before the first assignment
        for word, value in zip(words, before):
            if word.name:
                braces = any(kind == "braces" for kind, _, _ in word.parts)
                self.declare_one(env, command, options, word.name, word.append,
                                 Unknown(BRACES) if braces else value)
                if word.index is not None:
                    self.math(env, [("text", word.index, "q")])
                    self.forget(env, word.name)
                continue
            for field in value:
                found = re.fullmatch(r"([A-Za-z_]\w*)(?:(\+?)=(.*))?", field.text, re.A | re.S)
                if field.text[:1] in "-+" and field.text and not field.why:
                    options += field.text
                elif field.why or field.maybe or not found or (found.group(3) or "")[:1] == "(":
                    self.dirty(env, f"{command} {field.raw}")
                else:
                    name, append, value = found.groups()
                    self.declare_one(env, command, options, name, bool(append), value)
        return env

    def declare_one(self, env, command, options, name, append, value):
        if set("fFp") & set(options) or (command == "local" and not self.calls):
            return
        if "+" in options or ("n" in options and command != "export") or (
                "g" in options and self.calls):
            self.dirty(env, f"{command} {options}")
        if command in ("local", "declare", "typeset") and self.calls:
            self.locals.add(name)
            if not append:
                env[name] = NONE
        if set("iluctAI") & set(options) or ("r" in options and self.calls):
            env[name + " o"] = True
        if value is not None:
            self.assign(env, name, value, append)
        elif env.get(name + " r") and command != "export":
            self.dirty(env, f"{command} {name}")
        if command == "readonly" or ("r" in options and not self.calls):
            env[name + " r"] = True

    def do_prefix(self, env, fields, words, line):
        rest = fields[1:]
        while rest and not rest[0].why and rest[0].text in ("--", "-p"):
            rest = rest[1:]
        if not rest or (not rest[0].why and rest[0].text.startswith("-")):
            return env
        return self.call_fields(env, rest, words[1:], line, functions=False)

    def do_source(self, env, fields, words, line):
        word = words[1] if len(words) > 1 else words[0]
        value = self.scalar(dict(env), word.parts)
        path, folder = None, env.get("#cd", self.folder)
        if isinstance(value, Unknown):
            path = value.path
        elif "/" in value[1:] and value[0] != "/" and isinstance(folder, str):
            path = os.path.join(folder, value)
        if not path or self.files >= MAX_FILES or not os.path.isfile(path) or len(words) > 2:
            self.unread[self.file, line] = word.raw[:200]
            self.lose(env, f"{word.raw[:80]}, which is not read, may set it")
            return env
        self.files += 1
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
        return self.follow(env, decode(text, path), path, 1)

    def lose(self, env, why):
        """Makes all variables unknown, also those that have not been assigned."""
        for name in env:
            if NAME.fullmatch(name):
                env[name] = Unknown(why)
        env["#env"] = env["@"] = Unknown(why)

    def follow(self, env, text, file, line):
        kept = self.returns, self.file, self.dropped
        node = Parser(text, file, line).whole()
        self.returns, self.file, self.dropped = [] if self.files else None, file, None
        env = join(self.run(node, env), *self.returns or ())
        self.returns, self.file, self.dropped = kept
        return env

    def do_eval(self, env, fields, words, line):
        if any(w.why or w.maybe for w in fields):
            return self.run_dirty(env, "eval")
        words = fields[2 if fields[1:] and fields[1].text == "--" else 1:]
        kept, self.dropped = self.dropped, None
        env = self.run(Parser(" ".join(w.text for w in words), self.file, line).whole(), env)
        self.dropped = kept
        return env

    def do_exec(self, env, fields, words, line):
        if len(fields) == 1:
            return env
        self.find_train(fields[1:], line)
        self.ends.append(env)
        return dict(env) if all(w.many or w.maybe for w in fields[1:]) else None

    def do_exit(self, env, fields, words, line):
        self.ends.append(env)

    def do_return(self, env, fields, words, line):
        if self.returns is None:
            return env
        self.returns.append(env)

    def do_break(self, env, fields, words, line):
        """The way goes on behind the loop, or with its next round."""
        if self.breaks is None:
            return env
        if len(fields) > 1:
            self.dirty(env, f"{fields[0].text} of several loops")
        self.breaks.append(env)

    def do_set(self, env, fields, words, line):
        rest = fields[1:]
        while rest and not rest[0].why and not rest[0].maybe and re.match("[-+].", rest[0].text):
            text, rest = rest[0].text[1:], rest[1:]
            if text == "-":
                env["@"] = Array(rest)
                return env
            if text.endswith("o") and rest:
                text += " " + (rest[0].text if not rest[0].why else "?")
                rest = rest[1:]
            if not re.fullmatch("[euxvfhmaBCbE]*(o (errexit|nounset|xtrace|verbose|pipefail|noglob|"
                                "errtrace|allexport|noclobber|monitor))?", text):
                self.dirty(env, f"set {text}")
        if rest:
            env["@"] = Array(rest)
            if rest[0].why or rest[0].maybe or rest[0].text[:1] == "-":
                self.dirty(env, "set")
        return env

    def do_shift(self, env, fields, words, line):
        if env.get("@", ENV) != ENV:
            env["@"] = Unknown(COMPUTED)
        return env

    def do_shopt(self, env, fields, words, line):
        if not all(not w.why and w.text in SAFE for w in fields[1:]):
            self.dirty(env, " ".join(w.raw for w in fields[:3]))
        return env

    def do_trap(self, env, fields, words, line):
        texts = [w.text if not w.why else "?" for w in fields[1:] if w.text != "--"]
        harmless = re.fullmatch(r"-?|-[lp]|(exit|echo|kill|true|:)( [^;&|()<>$`={}\n]*)?",
                                texts[0] if texts else "")
        if len(texts) > 1 and texts[0][:1] not in ("-", "?"):
            later = dict(env)
            self.dirty(later, "a trap")
            self.apart(later, Parser(texts[0], self.file, line).whole())
        if len(texts) > 1 and not harmless and not set(texts[1:]) <= {"EXIT", "0"}:
            self.dirty(env, "a trap")
        return env

    def do_read(self, env, fields, words, line):
        """A command that may assign or unset any variable that it names."""
        if fields[0].text == "wait" and not any(re.match("-[a-z]*p", w.text) for w in fields):
            return env
        for field in fields[1:]:
            if field.why or field.maybe or re.match("-[A-Za-z]*C", field.text):
                self.dirty(env, f"{fields[0].text} {field.raw}")
            if fields[0].text in ("let", "mapfile", "readarray"):
                self.math(env, [("text", field.text, "q")])
            self.target(env, field.text)
            names = NAME.findall(field.text)
            if field.text[:1] == "-":  # the name may follow the letters of options
                names += [field.text[i:] for i in range(2, min(len(field.text), 9))]
            for name in names:
                self.forget(env, name)
                if name + "()" in env:
                    env[name + "()"] = Unknown(COMPUTED)
        for name in ("REPLY", "MAPFILE", "OPTARG", "OPTIND"):
            self.forget(env, name)
        return env

    def do_printf(self, env, fields, words, line):
        first = fields[1] if len(fields) > 1 else fields[0]
        if first.maybe or (first.why and first.text[:1] in ("", "-")):
            self.dirty(env, f"printf {first.raw}")
        return self.do_read(env, fields[:3], words, line) if first.text[:2] == "-v" else env

    def do_test(self, env, fields, words, line):
        for field in fields[1:]:
            if field.text != "]" and (field.text[:1] or any(w.text == "-v" for w in fields)):
                self.target(env, Unknown(field.why) if field.why else field.text)
        return env

    def do_cd(self, env, fields, words, line):
        value = self.scalar(dict(env), words[-1].parts) if fields[0].text == "cd" else NO_TEXT
        env["#cd"] = value.path or True if isinstance(value, Unknown) else True
        for name, old in env.items():
            if isinstance(old, Unknown) and not old.fixed and not (old.path or "/").startswith("/"):
                env[name] = old._replace(path=None)
        for name in ("PWD", "OLDPWD", "DIRSTACK"):
            self.forget(env, name)
        return env

    def do_dirty(self, env, fields, words, line):
        return self.run_dirty(env, fields[0].text)


TRAIN = ("train.py", "train_async.py")
NO_START = Field("", "no command that is understood starts it", True, False, TRAIN[0], "", 0)
DECLARE = ("export", "declare", "typeset", "local", "readonly")
BUILTIN = {".": "source", "builtin": "prefix", "command": "prefix", "continue": "break",
           **dict.fromkeys(("mapfile", "readarray", "getopts", "unset", "let", "wait"), "read"),
           **dict.fromkeys(("enable", "coproc", "compgen", *DECLARE), "dirty"),
           "pushd": "cd", "popd": "cd", "[": "test"}
BUILTINS = {*BUILTIN, "source", "eval", "exec", "exit", "return", "break", "set", "shopt", "trap",
            "shift", "read", "printf", "cd", "test"}
INERT = {"echo", "pkill", "pgrep", "grep", "alias", "kill", "type", "hash", "pwd"}
SAFE = {"-s", "-u", "-q", "nullglob", "globstar", "dotglob", "nocaseglob", "extglob",
        "inherit_errexit"}


def decode(data, path):
    if len(data) > MAX_BYTES:
        raise Refused(f"{path}:1: the file is larger than {MAX_BYTES} bytes")
    if b"\0" in data:
        raise Refused(f"{path}:1: the file has a NUL byte: it is no script")
    return data.decode("utf-8", "replace")


def words_of(shell, text):
    """The words of train.py; without such a command, of all arrays NAME_ARGS."""
    env = shell.follow({"?": 0}, text, shell.path, 1) or join(*shell.ends)
    if len(shell.trains) > 1:
        file, line, _ = [*shell.trains][1]
        raise Refused(f"{file}:{line}: train.py is started a second time; keep one of the commands")
    for words, asynchronous in shell.trains.values():
        return words, asynchronous
    words = []
    for name in env:
        value = shell.get(env, name) if isinstance(env[name], Array) else None
        if name.endswith("_ARGS") and value is not None:
            words += value if isinstance(value, Array) else [
                Field("", value.why, True, False, name, shell.path, 0)]
    if not words:
        raise Refused(f"{shell.path}: there is no array NAME_ARGS=( ... ) with words and no "
                      "train.py: is it a launch script of Miles?")
    return [*words, NO_START._replace(file=shell.path)], False
