#!/usr/bin/env python3
# sbom.py BUILD PREFIX NAME FILE ... - writes the software bill of materials of programs and
# modules.
#
# Writes PREFIX/share/doc/NAME/sbom.spdx.json (SPDX 2.3) about each FILE below PREFIX. Nothing is
# listed by hand: libraries are those that a FILE requests from the loader, and those whose name it
# contains because it loads them later; archives are those of the linker's command in BUILD; headers
# are those that the compiler read, as ninja recorded them. Each belongs to a package of the system
# (dpkg), or is listed by itself. The install step runs this.
# SPDX-License-Identifier: Apache-2.0
"""Software bill of materials of an installed component."""
import datetime
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import urllib.parse


SYSTEM = platform.freedesktop_os_release()["ID"]


def output(*words):
    """Returns the output of a command, even if some arguments fail; empty if it is missing."""
    try:
        return subprocess.run(words, check=False, capture_output=True, text=True,
                              env={**os.environ, "LC_ALL": "C"}).stdout
    except OSError:
        return ""


def facts(build):
    """Returns the facts that the build wrote about itself."""
    text = (build / "invar.build").read_text(encoding="utf-8")
    return dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)


def owners(paths):
    """Returns {real path: {(name, version, purl)}}: the packages that own the files, or the files.
    Asks dpkg about all files at once, because each question takes a tenth of a second."""
    names = {}  # every name that dpkg may know a file by
    for path in paths:
        real = os.path.realpath(path)
        for name in (str(path), real, f"/usr{path}", f"/usr{real}", real.removeprefix("/usr")):
            names.setdefault(name, real)
    known = {names[name]: package.partition(":")[0] for package, name in re.findall(
        r"^(\S[^,\n]*): (/.*)$", output("dpkg-query", "-S", *names), re.M) if name in names}
    shown = "${Package} ${Version} ${Architecture}\n"
    # without arguments dpkg would list every file
    listed = output("dpkg-query", "-W", "-f", shown, *sorted(set(known.values()))) if known else ""
    found = {}
    for line in listed.splitlines():
        package, version, arch = line.split()
        purl = f"pkg:deb/{SYSTEM}/{package}@{urllib.parse.quote(version)}?arch={arch}"
        found.setdefault(package, set()).add((package, version, purl))
    return {real: found[known[real]] if real in known else {(os.path.basename(real), "", "")}
            for real in names.values()}


def needed(file):
    """Returns the paths of the libraries that the loader loads."""
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", file))
    paths = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", file)))
    return [paths.get(name, name) for name in names if not name.startswith("ld-linux")]


def loaded(file):
    """Returns the libraries that are loaded later: their paths if they exist here, else their
    names."""
    names = set(re.findall(rb"lib[a-z0-9_-]+\.so(?:\.[0-9]+)+", pathlib.Path(file).read_bytes()))
    linked = {os.path.basename(path) for path in needed(file)}
    cache = dict(re.findall(r"^\s+(\S+) .*=> (\S+)$", output("/sbin/ldconfig", "-p"), re.M))
    return [cache.get(name, name) for name in sorted(n.decode() for n in names) if
            name not in linked]


def archives(build, name):
    """Returns third-party archives that are linked into a program or module of the build."""
    text = (build / "build.ninja").read_text(encoding="utf-8")
    block = re.search(rf"^build {re.escape(name)}(?: .*)?: .*\n((?:  .*\n)*)", text, re.M)
    words = re.findall(r"^  LINK_LIBRARIES = (.*)$", block[1] if block else "", re.M)
    return [word for word in " ".join(words).split()
            if word.startswith("/") and word.endswith(".a") and not word.startswith(f"{build}/")]


def objects(build, names):
    """Returns the objects that ninja links into these programs and modules."""
    return {line for name in names for line in
            output("ninja", "-C", str(build), "-t", "inputs", name).splitlines()}


def headers(build, names):
    """Returns third-party headers that the compiler read for these programs and modules."""
    others = [path.name for path in build.glob("invar-*.so") if path.name not in names]
    wanted = objects(build, names) - objects(build, others)
    source = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$",
                       (build / "CMakeCache.txt").read_text(encoding="utf-8"), re.M)[1]
    found, taken = set(), False
    for line in output("ninja", "-C", str(build), "-t", "deps").splitlines():
        if not line.startswith(" "):
            taken = line.partition(":")[0] in wanted
        elif taken and line.strip().startswith("/"):
            path = os.path.normpath(line.strip())
            if not path.startswith((f"{source}/", f"{build}/")):
                found.add(path)
    return found


class Document:
    """Packages and their relations to the described files."""

    def __init__(self, name, version):
        self.own = self.entry(name, version, "")
        self.own["licenseDeclared"] = "Apache-2.0"
        self.packages = {(name, version): self.own}
        self.files, self.relations = [], [("SPDXRef-DOCUMENT", "DESCRIBES", self.own["SPDXID"], "")]

    @staticmethod
    def entry(name, version, purl):
        entry = {"SPDXID": "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
                 "name": name, "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                 "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
                 "copyrightText": "NOASSERTION"}
        if version:
            entry["versionInfo"] = version
        if purl:
            entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER",
                                      "referenceType": "purl", "referenceLocator": purl}]
        return entry

    def add(self, owned, paths, kind, comment, reverse=False):
        """Adds the owners of the files, which `owned` has."""
        of = set().union(*(owned[os.path.realpath(path)] for path in paths))
        for name, version, purl in sorted(of):
            entry = self.packages.setdefault((name, version), self.entry(name, version, purl))
            pair = (self.own["SPDXID"], entry["SPDXID"])
            relation = (pair[1], kind, pair[0]) if reverse else (pair[0], kind, pair[1])
            if (*relation, comment) not in self.relations:
                self.relations.append((*relation, comment))

    def add_file(self, path, shown):
        data = pathlib.Path(path).read_bytes()
        number = len(self.files) + 1
        self.files.append({
            "SPDXID": f"SPDXRef-File-{number}", "fileName": f"./{shown}",
            "checksums": [{"algorithm": kind, "checksumValue": hashlib.new(kind, data).hexdigest()}
                          for kind in ("SHA1", "SHA256")],
            "licenseConcluded": "NOASSERTION", "copyrightText": "NOASSERTION"})
        self.relations.append((self.own["SPDXID"], "CONTAINS", f"SPDXRef-File-{number}", ""))

    def write(self, out, created):
        relations = [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b,
                      **({"comment": comment} if comment else {})}
                     for a, kind, b, comment in self.relations]
        body = {"packages": list(self.packages.values()), "files": self.files,
                "relationships": relations}
        name = f"{self.own['name']}-{self.own['versionInfo']}"
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        head = {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
                "name": name, "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{digest}",
                "creationInfo": {"created": created, "creators": ["Tool: packaging/sbom.py"]}}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**head, **body}, indent=1) + "\n", encoding="utf-8")
        out.chmod(0o644)


def main():
    build, prefix = (pathlib.Path(os.path.realpath(word)) for word in sys.argv[1:3])
    name, files = sys.argv[3], sys.argv[4:]
    about = facts(build)
    moment = os.environ.get("SOURCE_DATE_EPOCH") or about.get("commit-time")
    when = datetime.datetime.fromtimestamp(int(moment), datetime.timezone.utc) if moment else (
        datetime.datetime.now(datetime.timezone.utc))
    document = Document(name, about["version"])
    if about.get("commit"):
        document.own["sourceInfo"] = f"git commit {about['commit']}, {about['dirty']}"
    compiler = re.search(r"^CMAKE_C_COMPILER:\w+=(.*)$",
                         (build / "CMakeCache.txt").read_text(encoding="utf-8"), re.M)
    read = headers(build, [pathlib.Path(file).name for file in files])
    parts = [[(needed(prefix / file), "DYNAMIC_LINK", ""),
              (loaded(prefix / file), "OPTIONAL_DEPENDENCY_OF", "loaded when it is needed", True),
              (archives(build, pathlib.Path(file).name), "STATIC_LINK", "")] for file in files]
    rest = [(read, "BUILD_DEPENDENCY_OF", "its headers were compiled in", True),
            ([compiler[1]], "BUILD_TOOL_OF", about["compiler"], True)]
    owned = owners([path for part in [*parts, rest] for entry in part for path in entry[0]])
    for file, part in zip(files, parts):
        document.add_file(prefix / file, file)
        for entry in part:
            document.add(owned, *entry)
    for entry in rest:
        document.add(owned, *entry)
    document.write(prefix / "share/doc" / name / "sbom.spdx.json",
                   when.strftime("%Y-%m-%dT%H:%M:%SZ"))


if __name__ == "__main__":
    main()
