# shell_parser.py - makes a tree of a launch script of Miles, which is bash.
#
# Only what the flags of train.py depend on is kept: a condition is the commands of its test and
# what may follow, redirections are words that are expanded. A script that is not understood is
# refused, with file and line. The four files of this folder are one text (miles_import.c), started
# behind engine/ext/script_loop.py; it is an argument within single quotes and has none itself.
# SPDX-License-Identifier: Apache-2.0
import bisect
import json
import os
import re
import sys
from collections import namedtuple

MEMORY = 1 << 30
MAX_BYTES, MAX_FILES, MAX_WORDS, MAX_STEPS, NESTING = 1 << 20, 16, 32768, 50000, 64
COMPUTED = "a command of the script computes it, and nothing is executed"
SEQ = "seq computes it, and nothing is executed"
BRACES = "bash makes several words of {a,b} and {1..3}; write them out"
UNSET = "the script does not say what the variable is"
CONDITIONAL = "it depends on a condition, a loop or a function of the script"
NOT_TEXT = "it has a carriage return or is not UTF-8"


class Refused(Exception):
    """The script is no bash, or too large to be followed."""


# A part of a word is (kind, value, mode); the mode is q: quoted, l: literal, s: blanks end words.
Word = namedtuple("Word", "parts raw file line name index append array")

ASSIGN = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?)=", re.A)
PARAM = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.A)
OPERATOR = re.compile(r":?[-=+?]|##?|%%?|:|[/^,@].?")
REDIRECT = re.compile(r"(?:\d+|\{([A-Za-z_]\w*)(\[[^]\n]*\])?\})?"
                      r"(<<<|<<-?|<>|>>|>\||[<>]&|&>>?|<(?!\()|>(?!\())", re.A)
CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
NAME = re.compile(r"[A-Za-z_]\w*", re.A)
BACKQUOTED = re.compile(r"(?:[^\\`]|\\.)*`", re.S)
LINE = ("line",)  # behind the commands of one line that are not within others
PLAIN = re.compile(r"[\w./,%-]+")
BARE = re.compile(r"[^\s;&|()<>]+")
QUOTE = "\x27"
END_OF_WORD = " \t\n;&|()<>"


class Parser:
    named, used = set(), set()  # names in the text of words, and of variables that are expanded

    def __init__(self, text, file, line=1, depth=0):
        self.text, self.file, self.at, self.depth = text, file, 0, depth
        self.first, self.documents = line, []
        self.ends = [found.start() for found in re.finditer("\n", text)]

    def line(self):
        return self.first + bisect.bisect_left(self.ends, self.at)

    def fail(self, why):
        raise Refused(f"{self.file}:{self.line()}: {why}")

    def next_is(self, *texts):
        return self.text.startswith(texts, self.at)

    def expect(self, text, why="a bracket"):
        if not self.next_is(text):
            self.fail(f"the file ends within {why}" if self.at >= len(self.text) else
                      f"this is not understood here; {text} is expected")
        self.at += len(text)

    def deeper(self, step, *args):
        self.depth += 1
        if self.depth > NESTING:
            self.fail("commands are nested more than 64 deep")
        result = step(*args)
        self.depth -= 1
        return result

    # Words.

    def parts(self, end, mode, why=None):
        """Reads parts up to one of the characters `end`; the file must not end within `why`."""
        out, escaped = [], "$`\\\n" + ("" if end == "" else "\"}" if end == "}" else "\"")
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in end:
                return self.noted(out)
            self.at += 1
            if c == "\\":
                c = self.text[self.at:self.at + 1]
                if mode == "q" and c not in escaped:
                    out.append(("text", "\\", "q"))
                    continue
                self.at += 1
                if c != "\n":
                    out.append(("text", c or "\\", "q"))
            elif c == QUOTE and mode != "q":
                start, self.at = self.at, self.text.find(QUOTE, self.at)
                if self.at < 0:
                    self.at = start
                    self.fail("the file ends within a quote")
                out.append(("text", self.text[start:self.at], "q"))
                self.at += 1
            elif c == "\"" and end:
                out.append(("text", "", "q"))
                out += self.deeper(self.parts, "\"", "q", "a quote")
                self.at += 1
            elif c == "$":
                out += self.deeper(self.dollar, mode)
            elif c == "`":
                found = BACKQUOTED.match(self.text, self.at)
                if not found:
                    self.fail("the file ends within backquotes")
                text = re.sub(r"\\([\\`$" + "\"" * (mode == "q") + "])", r"\1", found.group()[:-1])
                inner = Parser(text, self.file, self.line(), self.depth + 1)
                self.at = found.end()
                out.append(("run", inner.deeper(inner.whole), mode))
            elif mode == "l" and c in "*?[":
                out.append(("glob", c, mode))
            elif mode != "q" and c == "~" and (not out or out[-1][1:] in (("=", "l"), (":", "l"))):
                out.append(("odd", COMPUTED, mode))
            else:
                plain = PLAIN.match(self.text, self.at - 1)
                self.at = plain.end() if plain else self.at
                out.append(("text", plain.group() if plain else c, mode))
        if why:
            self.fail("the file ends within " + why)
        return self.noted(out)

    def noted(self, parts):
        self.named.update(name for k, v, _ in parts if k == "text" for name in NAME.findall(v))
        return parts

    def arithmetic(self):
        """Reads from after "((" to after "))"; returns None if a subshell begins here."""
        start, depth = self.at, 0
        while self.at < len(self.text):
            c = self.text[self.at]
            if c == ")" and depth == 0:
                if not self.next_is("))"):
                    break
                inner = Parser(self.text[start:self.at], self.file, self.line(), self.depth)
                inner.named = set()
                self.at += 2
                return inner.parts("", "q")
            depth += (c == "(") - (c == ")")
            self.at += 1
        self.at = start
        return None

    def dollar(self, mode):
        if self.next_is("(("):
            self.at += 2
            inner = self.arithmetic()
            if inner is not None:
                return [("math", inner, mode)]
            self.at -= 2
        if self.next_is("("):
            self.at += 1
            node = self.commands()
            self.expect(")")
            return [("run", node, mode)]
        if self.next_is("{"):
            self.at += 1
            return [self.braces(mode)]
        if mode != "q" and self.next_is(QUOTE):
            found = re.compile(r"\x27(?:[^\\\x27]|\\.)*\x27", re.S).match(self.text, self.at)
            if not found:
                self.fail("the file ends within a quote")
            self.at = found.end()
            return [("odd", COMPUTED, "q")]
        if self.next_is("["):
            self.at += 1
            inner = self.parts("]", "q", "a bracket")
            self.at += 1
            return [("math", inner, mode)]
        found = PARAM.match(self.text, self.at)
        if not found:
            return [] if mode != "q" and self.next_is("\"") else [("text", "$", mode)]
        name = found.group()[0] if found.group().isdigit() else found.group()
        self.at += len(name)
        self.used.add(name)
        return [("param", (name, None, "", []), mode)]

    def braces(self, mode):
        """Reads from after "${" to after "}"."""
        op = index = ""
        found = re.compile(r"[#!](?=[A-Za-z_0-9@*#])").match(self.text, self.at)
        if found:
            op = found.group()
            self.at += 1
        found = PARAM.match(self.text, self.at)
        if not found:
            self.fail("this expansion is not understood")
        name = found.group()
        self.used.add(name)
        self.at = found.end()
        if self.next_is("["):
            start = self.at + 1
            self.at += 1
            self.parts("]", "q", "a bracket")
            index = self.text[start:self.at]
            self.at += 1
        if not self.next_is("}"):
            found = OPERATOR.match(self.text, self.at)
            if not found:
                self.fail("this expansion is not understood")
            first = found.group()[0]
            op += "/" if first in "/^," else "@" if first == "@" else found.group()
            self.at += 1 if first in "/^,@" else len(found.group())
        elif op:
            op += "}"
        argument = self.parts("}", "q" if mode == "q" else "s", "a bracket")
        self.at += 1
        return "param", (name, index, op, argument), mode

    def word(self, assigns=False):
        start, line, parts = self.at, self.line(), []
        name, index, append, array = None, "", "", None
        found = ASSIGN.match(self.text, self.at)
        if found:
            name, index, append = found.groups()
            self.named.update([] if assigns else [name])
            self.at = found.end()
            parts = [("text", found.group()[:-1], "l"), ("text", "=", "l")]
            if self.next_is("(") and not index:
                array = self.array()
        elif self.next_is("<(", ">("):
            self.at += 2
            parts = [("run", self.deeper(self.commands), "l")]
            self.expect(")")
        parts += self.parts(END_OF_WORD, "l")
        bare = "".join(v if k == "text" and m == "l" else "\0" for k, v, m in parts)
        if re.search(r"\{.*(,|\.\.).*\}", bare, re.S):
            parts.append(("braces", BRACES, "l"))
        if self.at == start:
            self.fail("this is not understood here")
        return Word(parts, self.text[start:self.at], self.file, line, name, index, bool(append),
                    array)

    def array(self):
        words = []
        self.at += 1
        while True:
            self.blanks(True)
            if self.at >= len(self.text):
                self.fail("the file ends within an array")
            if self.next_is(")"):
                self.at += 1
                return words
            if self.text[self.at] in ";&|(<>" and not self.next_is("<(", ">("):
                self.fail("an operator within an array; a value that has one needs quotes")
            words.append(self.word())

    # Commands. A node is (kind, ...), which Shell.run_KIND follows.

    def blanks(self, lines=False):
        while self.at < len(self.text):
            if self.next_is("\\\n"):
                self.at += 2
            elif self.next_is(" ", "\t"):
                self.at += 1
            elif self.next_is("#"):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif lines and self.next_is("\n"):
                self.at += 1
                while self.documents:
                    self.document(*self.documents.pop(0))
            else:
                return

    def document(self, mark, tabs, quoted, extra):
        """Reads the lines of a here-document."""
        lines, line, kept = [], self.line(), None
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            text = self.text[self.at:end]
            self.at = min(end + 1, len(self.text))
            if kept is not None:
                text, kept = kept + text, None
            if not quoted and CONTINUED.search(text) and self.at < len(self.text):
                kept = text[:-1]
                continue
            text = text.lstrip("\t") if tabs else text
            if text == mark:
                break
            lines.append(text)
        if not quoted:
            inner = Parser("\n".join(lines), self.file, line, self.depth)
            extra.append(Word(inner.parts("", "q"), "", self.file, line, None, "", False, None))

    def bare(self):
        found = BARE.match(self.text, self.at)
        return found.group() if found else ""

    def keyword(self, *words):
        self.blanks(True)
        if self.bare() not in words:
            self.fail(f"{words[-1]} is missing")
        self.at += len(self.bare())

    def whole(self):
        node = self.commands(LINE)
        if self.at < len(self.text):
            self.fail("this is not understood here")
        return node

    def commands(self, *stop):
        nodes = []
        while True:
            self.blanks(True)
            if self.at >= len(self.text) or self.next_is(")", ";;", ";&") or self.bare() in stop:
                return "all", nodes
            node = self.chain()
            self.blanks()
            if self.next_is("&"):
                node = ("apart", [node])
                self.at += 1
            elif self.next_is(";") and not self.next_is(";;", ";&"):
                self.at += 1
            nodes.append(node)
            self.blanks()
            if LINE in stop and (self.at >= len(self.text) or self.next_is("\n")):
                nodes.append(LINE)

    def chain(self):
        node = self.pipeline()
        while True:
            self.blanks()
            if not self.next_is("&&", "||"):
                return node
            self.at += 2
            self.blanks(True)
            node = ("if", node, [self.pipeline(), ("all", [])])

    def pipeline(self):
        while self.bare() in ("!", "time"):
            self.at += len(self.bare())
            self.blanks()
            if self.bare() == "-p":
                self.at += 2
                self.blanks()
        nodes = [self.deeper(self.command)]
        self.blanks()
        while self.next_is("|") and not self.next_is("||"):
            self.at += 2 if self.next_is("|&") else 1
            self.blanks(True)
            nodes.append(self.deeper(self.command))
            self.blanks()
        return nodes[0] if len(nodes) == 1 else ("apart", nodes)

    def command(self):
        step = self.read_subshell if self.next_is("(") else {
            "{": self.read_group, "[[": self.read_test, "if": self.read_if,
            "while": self.read_while, "until": self.read_while, "for": self.read_for,
            "select": self.read_for, "case": self.read_case,
            "function": self.read_function}.get(self.bare())
        node = step() if step else self.simple()
        if not step or node[0] == "function":
            return node
        extra, risky = [], False
        while self.blanks() or REDIRECT.match(self.text, self.at):
            risky |= self.redirect(extra)
        return ("redirected", node, extra, risky) if extra or risky else node

    def redirect(self, extra):
        """Reads a redirection. Returns true if opening its file may fail."""
        found = REDIRECT.match(self.text, self.at)
        self.at = found.end()
        if found.group(1):
            extra.append(Word([("param", (found.group(1), (found.group(2) or "")[1:-1], "{fd}", []),
                                "q")], "", self.file, self.line(), None, "", False, None))
        self.blanks()
        word = self.word()
        if found.group(3) in ("<<", "<<-"):
            raw = word.raw.replace("\\\n", "")
            quoted = any(c in raw for c in "\\\"" + QUOTE)
            mark = re.sub(r"\\(.)|[\"\x27]", r"\1", raw)
            self.documents.append((mark, found.group(3) == "<<-", quoted, extra))
            return False
        extra.append(word)
        if re.match(r"\d\d", found.group()):  # there may be fewer descriptors
            return True
        return found.group(3) != "<<<" and word.raw != "/dev/null"

    def simple(self):
        words, extra, risky, line = [], [], False, self.line()
        while True:
            self.blanks()
            if REDIRECT.match(self.text, self.at):
                risky |= self.redirect(extra)
            elif self.at >= len(self.text) or self.text[self.at] in "\n;&|)":
                break
            elif self.next_is("(") and len(words) == 1 and not extra:
                self.at += 1
                self.blanks()
                self.expect(")")
                return self.read_body(words[0].raw)
            else:
                words.append(self.word(all(w.name for w in words) or next(
                    w.raw for w in words if not w.name) in DECLARE))
        if not words and not extra and not risky:
            self.fail("this is not understood here")
        return "simple", words, extra, risky, line

    def read_body(self, name):
        self.blanks(True)
        return "function", name, self.deeper(self.command)

    def read_function(self):
        self.keyword("function")
        self.blanks()
        name = self.bare()
        self.at += len(name)
        self.blanks()
        if self.next_is("("):
            self.at += 1
            self.blanks()
            self.expect(")")
        return self.read_body(name)

    def read_subshell(self):
        if self.next_is("(("):
            self.at += 2
            inner = self.arithmetic()
            if inner is not None:
                return "math", inner
            self.at -= 2
        self.at += 1
        node = self.commands()
        self.expect(")")
        return "apart", [node]

    def read_group(self):
        self.keyword("{")
        node = self.commands("}")
        self.keyword("}")
        return node

    def read_if(self):
        """Conditions are one after the other, with what may follow each."""
        self.at += len(self.bare())
        test = self.commands("then")
        self.keyword("then")
        node, other = self.commands("elif", "else", "fi"), ("all", [])
        if self.bare() == "elif":
            other = self.read_if()
            return "if", test, [node, other]
        if self.bare() == "else":
            self.keyword("else")
            other = self.commands("fi")
        self.keyword("fi")
        return "if", test, [node, other]

    def read_while(self):
        self.keyword("while", "until")
        test = self.commands("do")
        return "loop", None, ("all", [test, self.loop_body()])

    def loop_body(self):
        self.blanks()
        if self.next_is(";"):
            self.at += 1
        self.blanks(True)
        if self.bare() == "{":
            return self.read_group()
        self.keyword("do")
        node = self.commands("done")
        self.keyword("done")
        return node

    def read_for(self):
        self.keyword("for", "select")
        self.blanks()
        if self.next_is("(("):
            self.at += 2
            inner = self.arithmetic()
            if inner is None:
                self.fail("the file ends within a bracket")
            return "loop", None, ("all", [("math", inner), self.loop_body()])
        name, words = self.bare(), []
        self.at += len(name)
        self.blanks(True)
        if self.bare() == "in":
            self.at += 2
            while self.blanks() or not (self.at >= len(self.text) or self.next_is(";", "\n")):
                words.append(self.word())
        return "redirected", ("loop", name, self.loop_body()), words, False

    def read_case(self):
        self.keyword("case")
        self.blanks()
        words, patterns, bodies, every = [self.word()], [], [], False
        self.keyword("in")
        while self.blanks(True) or self.bare() != "esac":
            if self.next_is("("):
                self.at += 1
            while True:
                self.blanks()
                patterns.append(self.word())
                every |= patterns[-1].raw == "*"
                self.blanks()
                if not self.next_is("|"):
                    break
                self.at += 1
            self.expect(")")
            bodies.append(self.commands("esac"))
            if self.next_is(";&", ";;&"):
                bodies[-1] = "dirty", ";& of a case"
            if self.next_is(";"):
                self.at += 3 if self.next_is(";;&") else 2
        self.keyword("esac")
        test = [("redirected", ("all", []), words, False),
                ("if", ("all", []), [("redirected", ("all", []), patterns, False), ("all", [])])]
        return "if", ("all", test), bodies + ([] if every else [("all", [])])

    def read_test(self):
        self.keyword("[[")
        words, indexes = [], False
        while self.blanks(True) or self.bare() != "]]":
            if self.at >= len(self.text):
                self.fail("the file ends within a bracket")
            if self.bare() == "=~":
                self.at += 2
                self.blanks()
                self.parts(" \t\n", "q")
            elif self.next_is("&&", "||", "(", ")", "<", ">"):
                self.at += 2 if self.next_is("&&", "||") else 1
            else:
                words.append(self.word())
                indexes |= words[-1].raw in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R")
        self.keyword("]]")
        return "all", [("math", word.parts) for word in words] if indexes else [
            ("redirected", ("all", []), words, False)]
