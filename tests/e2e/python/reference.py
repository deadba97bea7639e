#!/usr/bin/env python3
# reference.py [--write] - the signatures of docs/python-reference.md, compared with the sources.
#
# The sources are parsed, so neither libinvar.so nor torch is needed. The page must have exactly the
# public names of the package, with arguments, defaults and results; --write writes them into the
# page.
# SPDX-License-Identifier: Apache-2.0
"""Compares the reference of the Python package with its sources."""
import ast
import difflib
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/python-reference.md"
PACKAGE = ROOT / "python/invar"

# Modules of the page: the file, and public names that its __all__ lacks.
MODULES = {"invar": (PACKAGE / "__init__.py", []),
           "invar.huggingface": (PACKAGE / "huggingface.py", ["LedgerCallback"]),
           "invar.torch": (PACKAGE / "torch/__init__.py", ["attention_paged"]),
           "invar.ops": (PACKAGE / "ops.py", ["Device", "Quantised", "revision"])}


def public_names(path, more):
    """Returns the public names of a module: its __all__, if there is one, and `more`."""
    tree = ast.parse(path.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
            return sorted({*ast.literal_eval(node.value), *more})
    return more


def definitions(path):
    """Returns the classes and functions of a file, or of all files of a package, by name."""
    files = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
    return {node.name: node for file in files for node in ast.parse(file.read_text("utf-8")).body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))}


def is_property(node):
    return any(ast.unparse(one).endswith("property") for one in node.decorator_list)


def signature(node, name, drop_self=False):
    """Returns NAME(ARGUMENTS) -> RESULT."""
    arguments = ast.unparse(node.args)
    if drop_self:
        arguments = re.sub(r"^(self|cls)(: Any)?(, |$)", "", arguments)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{name}({arguments}){result}"


def fields(node):
    """Returns the fields of a dataclass as arguments of its constructor."""
    named = any("kw_only=True" in ast.unparse(one) for one in node.decorator_list)
    return ", ".join(["*"] * named + [ast.unparse(one) for one in node.body if isinstance(
        one, ast.AnnAssign) and not one.target.id.startswith("_")])


def methods_of(node, known):
    """Returns the methods of a class and of its base classes in the package."""
    found = {one.name: one for base in node.bases if ast.unparse(base) in known
             for one in methods_of(known[ast.unparse(base)], known)}
    found.update({one.name: one for one in node.body if isinstance(one, ast.FunctionDef)})
    return list(found.values())


def entries(name, node, known):
    """Returns (text, docstring) of a function, or of a class and its public methods."""
    if isinstance(node, ast.FunctionDef):
        return [(signature(node, name), ast.get_docstring(node))]
    methods = methods_of(node, known)
    begins = next((one for one in methods if one.name == "__init__"), None)
    made = signature(begins, name, True).removesuffix(" -> None") if begins else (
        f"{name}({fields(node)})")
    found = [(made, ast.get_docstring(node))]
    for one in methods:
        if not one.name.startswith("_"):
            text = (f"{name}.{one.name}: {ast.unparse(one.returns)}" if is_property(one)
                    else signature(one, f"{name}.{one.name}", True))
            found.append((text, ast.get_docstring(one)))
    return found


def block(path, more):
    """Returns the lines of a module's block."""
    lines, known = [], definitions(path)
    for name in public_names(path, more):
        for text, about in entries(name, known[name], known):
            lines += textwrap.wrap((about or "").partition("\n")[0], 96, initial_indent="# ",
                                   subsequent_indent="# ")
            lines += [*textwrap.wrap(text, 96, subsequent_indent="    ", break_long_words=False,
                                     break_on_hyphens=False), ""]
    return "\n".join(lines).rstrip() + "\n"


def main():
    was = now = PAGE.read_text("utf-8")
    for module, (path, more) in MODULES.items():
        begin = now.index("```python\n", now.index(f"## {module}\n")) + len("```python\n")
        now = now[:begin] + block(path, more) + now[now.index("```", begin):]
    if "--write" in sys.argv:
        PAGE.write_text(now, "utf-8")
    elif now != was:
        sys.exit("docs/python-reference.md is not what the sources say; reference.py --write:\n" +
                 "\n".join(difflib.unified_diff(was.splitlines(), now.splitlines(), lineterm="",
                                                n=0)))
    print(f"{now.count('```python')} modules")


if __name__ == "__main__":
    main()
