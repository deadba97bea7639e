#!/usr/bin/env python3
# report_look.py INVAR LEDGER_MAKE ANSWERS FOLDER - the pages of report, diff and bisect, in
# Chromium.
#
# Makes ledgers and pages (ANSWERS is the test program that makes the pages of bisect), opens them
# in headless Chromium, light and dark, narrow and wide, and checks: no error, nothing loaded,
# nothing wider than the window, readable contrast, curves with colored pixels, and controls that
# work. Control: pages with planted faults must fail. The screenshots stay in FOLDER for people.
# Exits with 77 if there is no Chromium.
# SPDX-License-Identifier: Apache-2.0
import base64
import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys

from browser import Browser, pixels, program

HOSTILE = "fused </script><script>alert(1)</script>"
WIDTHS = (400, 800, 1200, 1600)

# Events that a page must never cause. A blocked script is an entry of the log, an alert is a
# dialog.
ALARMS = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded",
          "Page.javascriptDialogOpening"}

# Returns texts that are hard to read: a contrast below 4.5, or below 3 for large text (WCAG AA).
CONTRAST = """(() => {
  const parse = text => {
    const numbers = (text.match(/[\\d.]+(e-?\\d+)?/g) || []).map(Number);
    const scale = text.startsWith('color(') ? 255 : 1;
    return [...numbers.slice(0, 3).map(n => n * scale), numbers.length > 3 ? numbers[3] : 1];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const light = rgb => {
    const [r, g, b] = rgb.map(c => c / 255).map(c =>
      c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement)
      layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const bad = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.checkVisibility()) continue;
    if (element.closest('script, style, noscript, title, #tip')) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const ink = over(parse(element.closest('svg') ? style.fill : style.color), back);
    const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.6 && style.fontWeight >= 600) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < least)
      bad.add(`${element.tagName}.${element.getAttribute('class')} ${ratio.toFixed(2)} `
        + walk.currentNode.data.trim().slice(0, 20));
  }
  return [...bad];
})()"""

# Returns the rectangle of an element.
BOX = "e => (r => [r.x, r.y, r.width, r.height])(e.getBoundingClientRect())"

# Returns controls and pictures without a name for screen readers.
NAMELESS = """[...document.querySelectorAll('button, input, [role=img], [role=region], a')]
  .filter(e => e.checkVisibility() && !e.textContent.trim() && !e.getAttribute('aria-label')
    && !e.closest('label'))
  .map(e => e.outerHTML.slice(0, 80))"""


class PageChecker:
    """Opens pages and collects what is wrong with them."""

    def __init__(self, browser, folder):
        self.browser, self.folder, self.wrong, self.checks = browser, folder, [], 0

    def expect(self, good, what):
        self.checks += 1
        if not good:
            self.wrong.append(what)

    def alarms(self):
        loaded = [e["params"]["request"]["url"] for e in self.browser.events
                  if e["method"] == "Network.requestWillBeSent"]
        return ([f"{e['method']}: {json.dumps(e['params'])[:300]}" for e in self.browser.events
                 if e["method"] in ALARMS] + [f"loads {url}" for url in loaded[1:]])

    def page(self, path, width, dark, charts):
        b, name = self.browser, f"{path.stem}-{width}-{'dark' if dark else 'light'}"
        self.expect(b.show(path.as_uri(), width, dark), f"{name}: does not load")
        if charts:
            self.expect(b.wait("document.documentElement.hasAttribute('data-ready')"),
                        f"{name}: is not ready: {b.ask('document.documentElement.dataset.failed')}")
        wide = b.ask("document.documentElement.scrollWidth")
        self.expect(wide <= width, f"{name}: {wide} pixels wide in a window of {width}")
        (self.folder / f"{name}.png").write_bytes(b.whole_page(width))
        corner = sum(pixels(b.picture((2, 2, 4, 4)))[0][0]) / 3
        self.expect(corner < 45 if dark else corner > 230, f"{name}: the page is of grey {corner}")
        for text in b.ask(CONTRAST):
            self.expect(False, f"{name}: faint text: {text}")
        for element in b.ask(NAMELESS):
            self.expect(False, f"{name}: has no name: {element}")
        if charts:
            self.curves(name)
        for alarm in self.alarms():
            self.expect(False, f"{name}: {alarm}")

    def curves(self, name):
        """Checks that the first charts have colored pixels; axes and text are gray."""
        b = self.browser
        boxes = b.ask(f"[...document.querySelectorAll('#featured .chart > svg')].slice(0, 3)"
                      f".map({BOX})")
        self.expect(len(boxes) == 3, f"{name}: {len(boxes)} charts")
        for box in boxes:
            color = sum(max(p) - min(p) > 60 for row in pixels(b.picture(box)) for p in row)
            self.expect(color > 200, f"{name}: a chart with {color} coloured pixels")

    def controls(self, path):
        """Checks the mouse, the keyboard and the buttons."""
        b = self.browser
        b.show(path.as_uri(), 1200, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        b.ask("document.getElementById('curves').scrollIntoView()")
        self.expect(b.wait("document.querySelector('.chart .line path') !== null"), "no line")
        x, y, width, height = b.ask(f"({BOX})(document.querySelector('.chart > svg'))")
        b.mouse("mouseMoved", x + width / 2, y + height / 2)
        tip = b.ask("document.getElementById('tip').hidden ? '' "
                    ": document.getElementById('tip').innerText")
        self.expect(re.search(r"\b[0-9a-f]{16}\b", tip) and "same bits" in tip and HOSTILE in tip,
                    f"the tooltip says {tip!r}")
        b.mouse("mousePressed", x + width * 0.4, y + height / 2, True)
        b.mouse("mouseMoved", x + width * 0.7, y + height / 2, True)
        b.mouse("mouseReleased", x + width * 0.7, y + height / 2)
        button = "document.querySelector('#bar > button')"
        self.expect(b.ask(f"!{button}.hidden"), "dragging does not zoom")
        b.ask(f"{button}.click()")
        self.expect(b.ask(f"{button}.hidden"), "the zoom is not reset")
        drawn = "document.querySelectorAll('.chart .line').length"
        before = b.ask(drawn)
        b.ask("document.querySelector('#bar button.run').click()")
        self.expect(b.wait(f"{drawn} < {before}"), "a hidden run is still drawn")
        b.ask("(s => { s.value = 0.9; s.dispatchEvent(new Event('input')); })"
              "(document.querySelector('.smooth input'))")
        self.expect(b.wait("document.querySelector('.chart .raw') !== null"), "nothing is smoothed")
        labels = "document.querySelectorAll('.chart > svg .axes')[2].textContent"
        linear = b.ask(labels)
        b.ask("document.querySelectorAll('.chart button')[2].click()")
        self.expect(b.wait(f"{labels} !== {json.dumps(linear)}"), "no logarithmic axis")
        b.ask("document.querySelector('.chart > svg').focus()")
        for key, kind in itertools.product(("Home", "ArrowRight", "ArrowRight"),
                                           ("keyDown", "keyUp")):
            b.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)
        self.expect(b.ask("document.getElementById('tip').innerText.startsWith('Step 2')"),
                    "the arrow key does not move the cursor")
        before = b.ask(labels)
        b.ask("document.querySelectorAll('.axis button')[1].click()")
        self.expect(b.wait(f"{labels} !== {json.dumps(before)}"), "no axis of time")
        b.ask("document.querySelector('.chart > svg').focus()")
        b.call("Input.dispatchKeyEvent", type="keyDown", key="End", code="End")
        tip = b.ask("document.getElementById('tip').innerText")
        self.expect(re.match(r"[\d.]+ s|\d+:\d\d", tip) and "step" in tip,
                    f"in time the tooltip says {tip!r}")
        b.ask("(s => { s.value = 'kl'; s.dispatchEvent(new Event('input')); })"
              "(document.getElementById('metric-search'))")
        shown = b.ask("[...document.querySelectorAll('#groups figure')]"
                      ".filter(e => e.checkVisibility()).map(e => e.dataset.name)")
        self.expect(shown and all("kl" in name for name in shown), f"the search finds {shown}")
        self.expect(b.ask("document.querySelectorAll('script').length") == 8, "a script was added")
        pdf = base64.b64decode(b.call("Page.printToPDF", printBackground=True)["data"])
        self.expect(pdf.startswith(b"%PDF") and len(pdf) > 20000, "it cannot be printed")
        for alarm in self.alarms():
            self.expect(False, f"controls: {alarm}")

    def head(self, path):
        """Checks the tiles with the main results, and the table of metrics that never change."""
        b = self.browser
        b.show(path.as_uri(), 1200, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        tiles = b.ask("[...document.querySelectorAll('.tiles li')].map(e => e.innerText)")
        for word in ("Reward", "Best evaluation", "Duration", "Tokens/s"):
            self.expect(any(tile.startswith(word) for tile in tiles), f"no {word} in {tiles}")
        still = b.ask("[...document.querySelectorAll('#constants tbody tr')].map(e => e.innerText)")
        self.expect(still, "no metric is constant")
        drawn = b.ask("[...document.querySelectorAll('figure')].map(e => e.dataset.name)")
        for line in still:
            self.expect(line.split()[0] not in " ".join(drawn).split(), f"{line} is drawn, too")

    def samples(self, path):
        """Checks the order and choice of samples, and that hostile texts stay text."""
        b = self.browser
        b.show(path.as_uri(), 1200, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        choose = ("((i, value) => {{ const s = document.querySelectorAll('#samples select')[i];"
                  "s.value = value; s.dispatchEvent(new Event('change')); }})({}, {!r})").format
        rewards = "[...document.querySelectorAll('.sample .marks li:first-child b')]" \
                  ".map(e => Number(e.textContent.replace('\\u2212', '-')))"
        worst = b.ask(rewards)
        self.expect(len(worst) == 12 and worst == sorted(worst), f"the first samples: {worst}")
        b.ask(choose(0, "best reward first"))
        best = b.ask(rewards)
        self.expect(best == sorted(best, reverse=True) and best[0] > worst[0], f"the best: {best}")
        b.ask("document.querySelector('#samples-body > button').click()")
        self.expect(len(b.ask(rewards)) == 24, "the button shows no more")
        b.ask(choose(1, "57"))
        heads = b.ask("[...document.querySelectorAll('.sample h3')].map(e => e.innerText)")
        self.expect(len(heads) >= 2 and all("step 57" in head for head in heads),
                    f"of step 57: {heads}")
        text = b.ask("document.querySelector('.sample').innerText")
        self.expect("</script><script>alert(2)" in text and "<!--" in text, f"the text is {text!r}")
        self.expect("U+202E" in text and "\u202e" not in text, f"a direction is turned: {text!r}")
        self.expect("</b>42" in text and "U+0000" in text, f"the label is not in {text!r}")
        for color, kinds in (("log-prob", {"doubt"}), ("advantage", {"gain", "loss"}),
                              ("none", set())):
            b.ask(choose(2, color))
            found = set(b.ask("[...document.querySelectorAll('.sample .token')]"
                              ".map(e => e.className.split(' ')[1])"))
            self.expect(found - {"", "inserted"} == kinds, f"colours of {color}: {found}")
        for alarm in self.alarms():
            self.expect(False, f"samples: {alarm}")

    def evaluations(self, path):
        """The best value is the lowest of a loss and the highest of a reward; others show both
        ends."""
        def series(name, values):
            return {"name": name, "kind": "evaluation", "count": len(values), "odd": 0,
                    "at": [0] + [10] * (len(values) - 1),
                    "bits": "".join(struct.pack(">d", value).hex() for value in values)}

        cases = (
            ({"eval/a": (0.25, 0.75, 0.5), "eval/a-truncated_ratio": (1, 1, 1)},
             "Best evaluation 0.75 a at step 10"),
            ({"eval/aime-24": (0, 0.5), "eval/aime-24-truncated_ratio": (1, 1)},
             "Best evaluation 0.5 aime-24 at step 10"),
            ({"eval/eval/loss": (2, 1.5, 3), "eval/eval/runtime": (9, 8, 7)},
             "Best evaluation 1.5 eval/loss at step 10"),
            ({"eval/wiki/perplexity": (9, 7, 8)}, "Best evaluation 7 wiki/perplexity at step 10"),
            ({"eval/x/steps": (1, 3, 2)},
             "Evaluation 1 \u2192 2 x/steps, at step 0 and at step 20"),
            ({"eval/a": (0.5,), "eval/b/accuracy": (0.1, 0.9), "eval/c/ppl": (4, 3)},
             "Best evaluation 0.5 a at step 0; 0.9: b/accuracy at step 10; 3: c/ppl at step 10"))
        for sets, expected in cases:
            self.plant(path, lambda data, sets=sets: data["runs"][0].update(series=[
                one for one in data["runs"][0]["series"] if one["kind"] != "evaluation"
            ] + [series(*one) for one in sets.items()]))
            tiles = self.browser.ask("[...document.querySelectorAll('.tiles li')]"
                                     ".map(e => e.innerText.replaceAll('\\n', ' '))")
            self.expect(expected in tiles, f"{expected!r} is not among {tiles}")

    def several(self, path):
        """Checks the table of many runs, and their warnings."""
        def many(data):
            run, pair = data["runs"][0], data["pairs"][0]
            data["runs"] = [{**run, "label": f"run {i}", "uuid": f"{i:032x}"} for i in range(6)]
            data["runs"][5]["events"] = [
                {"step": i, "ms": i, "level": "warning", "kind": "triage", "data": None,
                 "message": f"reward fell to {i}"} for i in range(5)]
            data["runs"][5]["levels"] = {"warning": 5}
            data["runs"][3]["series"] = [series for series in run["series"]
                                         if "reward" not in series["name"]]
            data["pairs"] = [{**pair, "b": i, "first": 57 - i} for i in range(1, 6)]
            data["facts"] = {scope: {key: values[:1] * 6 for key, values in keys.items()}
                             for scope, keys in data["facts"].items()}

        self.plant(path, many)
        b = self.browser
        said = b.ask("document.getElementById('verdict').textContent")
        self.expect(said.startswith("5 of 5 runs part from run 0, first at step 52"), said)
        rows = b.ask("[...document.querySelectorAll('#cards > .scroll tbody tr')]"
                     ".map(e => e.innerText)")
        self.expect(len(rows) == 6 and "from step 53" in rows[4] and "0.875" in rows[0],
                    f"the table of runs is {rows}")
        heads = b.ask("[...document.querySelectorAll('#cards th')].map(e => e.textContent)")
        cells = b.ask("[...document.querySelectorAll('#cards > .scroll tbody tr')]"
                      ".map(e => [...e.cells].map(cell => cell.textContent))")
        goals = [{title: row[heads.index(title)] != "\u2013" for title in ("Reward", "Loss")
                  if title in heads} for row in cells]
        self.expect(goals == [{"Reward": i != 3, "Loss": i == 3} for i in range(6)],
                    f"{heads}: runs that have a goal: {goals}")
        self.expect(not b.ask("document.querySelector('#cards .card').checkVisibility()"),
                    "cards come before what is compared")
        b.ask("document.querySelector('#cards summary').click()")
        said = b.ask("document.querySelectorAll('.card')[5].innerText")
        self.expect("Step 2: reward fell to 2" in said and "and 2 more warnings" in said,
                    f"warnings are {said!r}")
        for width, dark in itertools.product((400, 1600), (False, True)):
            self.page(self.folder / "planted.html", width, dark, True)

    def plant(self, path, change):
        """Shows a page with changed data."""
        text = path.read_text(encoding="utf-8")
        found = re.search(r'id="data">(.*?)</script', text, re.S)
        data = json.loads(found[1])
        change(data)
        planted = self.folder / "planted.html"
        planted.write_text(text[:found.start(1)] + json.dumps(data).replace("<", "\\u003c")
                           + text[found.end(1):], encoding="utf-8")
        self.browser.show(planted.as_uri(), 1200, False)
        self.expect(self.browser.wait("document.documentElement.hasAttribute('data-ready')"),
                    "a page with other data is not ready")

    def strange_samples(self, path):
        """Invisible characters are shown, values that are not finite come first, and only sampled
        tokens have a likelihood."""
        def sample(idx, reward, logp, inserted=(), response=None, text="asked",
                   label=None):
            return {"label": label, "step": 1, "idx": idx, "prompt": idx, "finish": "stop",
                    "tokens": len(logp), "parts": [], "cut": None, "text": text,
                    "logp": logp, "credit": [0] * len(logp),
                    "inserted": list(inserted), "response": response or ["t"] * len(logp),
                    "reward": struct.pack(">d", reward).hex(),
                    "advantage": struct.pack(">d", 0).hex()}

        text = "a\U000e0041b\u3164c\u115fd\ufe0fe\u2028f\ue000g\U000e0100h\ti\nj"
        shown = ("a<U+E0041>b<U+3164>c<U+115F>d<U+FE0F>e<U+2028>f<U+E000>g<U+E0100>h\ti\nj"
                 .replace("<", "\u27e8").replace(">", "\u27e9"))
        samples = [sample(0, 1, [-1000, -1000], response=["", "\u00e4"], text=text,
                          label=text),
                   sample(1, float("nan"), [-2000]),
                   # the mean is -3: one token was not sampled
                   sample(2, 0, [0, -3000], inserted=[0]),
                   sample(3, float("inf"), [-10, None]),
                   sample(4, 2, [0, 0, -7000])]
        self.plant(path, lambda data: data["runs"][0].update(
            samples=samples, kept={"samples": 1000, "steps": 250, "over": 3}))
        b = self.browser
        said = b.ask("document.getElementById('samples-note').textContent").replace("\u202f", " ")
        self.expect(said.startswith("5 of 1 000 kept samples, 1 of 250 steps") and
                    "3 samples left out" in said, f"of what is left out it says {said!r}")
        orders = {"worst reward first": ({1, 3}, [2, 0, 4]),
                  "best reward first": ({1, 3}, [4, 0, 2]),
                  "least likely first": ({3}, [2, 4, 1, 0])}
        for name, (odd, others) in orders.items():
            b.ask("((s, v) => { s.value = v; s.dispatchEvent(new Event('change')); })"
                  f"(document.querySelector('#samples select'), {name!r})")
            found = b.ask("[...document.querySelectorAll('.sample h3')]"
                          ".map(e => Number(e.textContent.split(' ').pop()))")
            self.expect(set(found[:len(odd)]) == odd and found[len(odd):] == others,
                        f"{name}: {found}")
        asked = b.ask("[...document.querySelectorAll('.sample .asked')].map(e => e.textContent)")
        self.expect(shown in asked, f"{shown!r} is not among {asked}")
        labels = b.ask("[...document.querySelectorAll('.sample .wanted')].map(e => e.textContent)")
        self.expect(labels == [f"label{shown}"], f"the labels are {labels}")
        sizes = b.ask("[...document.querySelectorAll('.token')]"
                      ".map(e => e.getBoundingClientRect().width)")
        self.expect(len(sizes) == 10 and min(sizes) > 2, f"tokens of {sizes} pixels")

    def samples_of_answers(self, path):
        """Without rewards, no text mentions advantages."""
        self.plant(path, lambda data: [one.update(reward=None, advantage=None, credit=[])
                                       for one in data["runs"][0]["samples"]])
        b = self.browser
        choices = b.ask("[...document.querySelectorAll('#samples option')].map(e => e.value)")
        self.expect("longest first" in choices and "log-prob" in choices, f"choices: {choices}")
        titles = b.ask("[...document.querySelectorAll('.token')].map(e => e.title)")
        self.expect(any("log-prob" in title for title in titles), f"tooltips: {titles[:3]}")
        marks = b.ask("[...document.querySelectorAll('.sample .marks')].map(e => e.innerText)")
        for text in (*choices, *titles, *marks):
            self.expect("advantage" not in text and "reward" not in text, f"of answers: {text!r}")

    def marks(self, path):
        """Checks marks of values that a line cannot show, the strip and the heat map."""
        b = self.browser
        b.show(path.as_uri(), 1600, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        b.whole_page(1600)
        for selector in (".odd .nan", ".rug .warning", ".rug .resume", ".rug .checkpoint",
                         ".strip .equal", ".strip .different", ".heat .born", ".flag"):
            self.expect(b.ask(f"document.querySelector('{selector}') !== null"), f"no {selector}")
        said = b.ask("document.getElementById('verdict').textContent")
        self.expect("1 of 2 runs parts from main, at step 57" in said, f"the verdict is {said!r}")

    def ranks(self, several, alone):
        """Checks the bars of ranks, the straggler first; a run on one rank has no such section."""
        b = self.browser
        b.show(several.as_uri(), 1600, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        rows = b.ask("[...document.querySelectorAll('#ranks tbody tr')].map(e => e.innerText)")
        self.expect(len(rows) == 3 and "straggler" in rows[0] and rows[0].startswith("1"),
                    f"the ranks are {rows}")
        self.expect(not any("straggler" in row for row in rows[1:]), f"two stragglers: {rows}")
        widths = b.ask("[...document.querySelectorAll('#ranks rect.compute')]"
                       ".map(e => e.getBoundingClientRect().width)")
        self.expect(len(widths) == 3 and widths[0] > 1.2 * widths[1] > 10, f"bars of {widths}")
        turns = b.ask("[...document.querySelectorAll('#ranks tbody tr')].map(e => [...e"
                      ".querySelectorAll('rect.turn')].map(r => Number(r.getAttribute('x'))))")
        self.expect(turns[0] and min(turns[0]) == 60 and max(turns[1]) < 60,
                    f"the slowest of steps are at {turns}")
        self.expect("Rank 1 on node1 is a straggler" in b.ask("document.body.innerText"),
                    "the straggler is no finding")
        links = "[...document.querySelectorAll('#nav a')].map(e => e.textContent)"
        self.expect("Ranks" in b.ask(links), "no way to the ranks")
        b.show(alone.as_uri(), 1600, False)
        b.wait("document.documentElement.hasAttribute('data-ready')")
        self.expect(b.ask("document.getElementById('ranks').hidden"), "one rank has a section")
        self.expect("Ranks" not in b.ask(links), "a way to the ranks, of which there is one")

    def search(self, path):
        """Checks the chart of a bisect: marks in four colors, and the found commit at its
        position."""
        b = self.browser
        b.show(path.as_uri(), 1600, False)
        colors = b.ask("[...new Set([...document.querySelectorAll('.walk .mark')]"
                        ".map(e => getComputedStyle(e).stroke))]")
        self.expect(len(colors) == 4, f"the marks have the colours {colors}")
        goal, marks = b.ask(f"[({BOX})(document.querySelector('.goal')), [...document"
                            f".querySelectorAll('.walk g .mark.again')].map({BOX})]")
        self.expect(len(marks) == 1 and abs(goal[0] - marks[0][0] - marks[0][2] / 2) < 2,
                    f"the found commit is at {goal}, its marks are at {marks}")
        # Each trial has a mark on the strip and one in its row; the legend has one more of each.
        counts = b.ask("['good', 'third', 'skip', 'bad', 'bad.again'].map(kind =>"
                       " document.querySelectorAll(`.mark.${kind}`).length)")
        self.expect(counts == [9, 3, 3, 8, 2], f"marks of each kind: {counts}")
        patch = b.ask("document.querySelector('.patch').innerText")
        self.expect("-<b>old</b>" in patch, f"the patch is {patch!r}")
        cards = b.ask("document.getElementById('cards').innerText")
        self.expect("kernels/fold.c +10" in cards and "Ada <ada@example.org>" in cards,
                    f"the cards are {cards!r}")

    def control(self, path):
        """Control: pages with planted faults; the checks above must detect each."""
        text = path.read_text(encoding="utf-8")
        faults = {
            "foreign-script": text.replace("<footer>", "<script>var x;</script><footer>"),
            "broken-data": text.replace('"runs":', '"sunr":'),
            "loads": text.replace("<footer>", '<img src="http://localhost:9/x.png"><footer>'),
            "wide": text.replace('<p id="pill">', '<svg width="3000"></svg><p id="pill">'),
            "faint": text.replace("--quiet: #59606e", "--quiet: #c9ccd2"),
        }
        # A changed style sheet would be blocked, which is a finding, too, but not the planted one.
        faults["faint"] = re.sub(r"style-src '[^']*'", "style-src 'unsafe-inline'", faults["faint"])
        for name, page in faults.items():
            planted = self.folder / f"control-{name}.html"
            planted.write_text(page, encoding="utf-8")
            inner = PageChecker(self.browser, self.folder)
            inner.page(planted, 400, False, charts=name != "broken-data")
            self.expect(inner.wrong, f"the planted fault {name} was not noticed")


def make_pages(invar, make, answers, folder):
    """Makes the pages. Returns {path: whether it has charts}."""
    def run(*command, codes=(0,)):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True,
                              env={**os.environ, "INVAR_TEST_PAGES": str(folder)})
        if done.returncode not in codes:
            sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ledger, long = folder / "ledger.db", folder / "long.db"
    run(make, ledger, "steps=100", "crash=60", "resume=45", "name=main")
    run(make, ledger, "add=1", "steps=100", f"name={HOSTILE}", "fault=diverges:57:layer.1.mlp.out",
        "fault=nan:80:layer.0.attn.out", "fault=spike:30", "fault=slow:40")
    run(make, ledger, "add=1", "steps=70", "name=replay", "killed=1")
    run(make, long, "steps=2600", "name=long", "fault=spike:1300")
    three, one, thin, diff = (folder / f"{name}.html" for name in ("three", "one", "long", "diff"))
    run(invar, "ledger", "report", "--ledger", ledger, "1", "2", "3", "--out", three)
    run(invar, "ledger", "report", "--ledger", ledger, "1", "--out", one)
    run(invar, "ledger", "report", long, "--out", thin)
    run(invar, "diff", "--ledger", ledger, "1", "2", "--html", diff, codes=(1, 3))
    ranks, alone, old = folder / "ranks.html", folder / "alone.html", folder / "old.db"
    run(make, folder / "ranks.db", "steps=100", "name=ranks", "fault=straggler:60:1")
    run(invar, "ledger", "report", folder / "ranks.db", "--out", ranks)
    shutil.copy("tests/golden/ledger-1.db", old)  # a version that did not record ranks
    run(invar, "ledger", "report", "--ledger", old, "1", "--out", alone)
    run(answers)
    bisects = {folder / f"bisect-{name}.html": False for name in ("found", "changes", "suspects")}
    return {three: True, one: True, thin: True, ranks: True, alone: True, diff: False, **bisects}


def main():
    invar, make, answers, folder = sys.argv[1:4] + [pathlib.Path(sys.argv[4]).resolve()]
    found = program()
    pages = make_pages(invar, make, answers, folder)
    browser = Browser(found)
    checker = PageChecker(browser, folder)
    for (path, charts), width, dark in itertools.product(pages.items(), WIDTHS, (False, True)):
        checker.page(path, width, dark, charts)
    first = next(iter(pages))
    checker.marks(first)
    checker.controls(first)
    checker.head(folder / "one.html")
    checker.evaluations(folder / "one.html")
    checker.several(first)
    checker.samples(first)
    checker.strange_samples(folder / "one.html")
    checker.samples_of_answers(folder / "one.html")
    checker.control(first)
    checker.ranks(folder / "ranks.html", folder / "alone.html")
    checker.search(folder / "bisect-found.html")
    browser.close()
    for what in checker.wrong:
        print(what)
    print(f"{len(pages)} pages, {checker.checks} checks, {len(checker.wrong)} wrong")
    print(f"pictures in {folder}")
    return 1 if checker.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
