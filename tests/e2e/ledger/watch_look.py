#!/usr/bin/env python3
# watch_look.py INVAR FOLDER - the page of invar ledger watch --serve in Chromium, while a run
# writes, is killed and resumes.
#
# Updates of the page must keep what the user has set: the focus, a selected text, a logarithmic
# axis. New samples wait until the user presses a button. The page continues when the run is
# resumed. Exits with 77 if there is no Chromium.
# SPDX-License-Identifier: Apache-2.0
import pathlib
import shutil
import sys

from browser import Browser, program
import watch_serve
from watch_serve import Watch, expect, has_saved, train, wrong

import tiny  # in the folder that watch_serve adds to the path

WORDS = ("--run", "live", "--save-interval", "5", "--keep-checkpoints", "2")
ENTRIES = "document.getElementById('verdict').textContent"
LIVE = "document.getElementById('live').textContent"


def wait_for_update(browser):
    """Waits until the page has new data."""
    before = browser.ask(ENTRIES)
    for _ in range(30):
        if browser.wait(f"{ENTRIES} !== {before!r}"):
            return
    expect(False, f"the page stays at {before!r}")


def check_state_kept(browser):
    """Checks that an update keeps the controls and their state."""
    browser.ask("""
      window.order = document.querySelector('#samples-tools select');
      window.log = document.querySelector('.chart button');
      window.chart = document.querySelector('.chart > svg');
      window.slider = document.querySelector('.smooth input');
      window.read = document.querySelector('.sample .asked').firstChild;
      log.click(); order.focus({preventScroll: true}); chart.scrollIntoView();
      getSelection().selectAllChildren(document.querySelector('.sample .asked'));
      1""")
    chosen = browser.ask("String(getSelection())")
    lines = browser.ask("window.chart.querySelector('.line path').getAttribute('d')")
    wait_for_update(browser)
    for name in ("order", "log", "chart", "slider", "read"):
        expect(browser.ask(f"document.contains({name})"), f"{name} was made anew")
    expect(browser.ask("document.activeElement === order"), "the focus is gone")
    expect(chosen and browser.ask("String(getSelection())") == chosen, "the selection is gone")
    expect(browser.ask("log.getAttribute('aria-pressed')") == "true", "the axis is linear again")
    expect(browser.wait(f"chart.querySelector('.line path').getAttribute('d') !== {lines!r}"),
           "the chart has no new values")


def check_samples_wait(browser):
    """Checks that new samples wait for their button; other controls show them, too."""
    button = "document.querySelector('#samples-tools button')"
    expect(browser.wait(f"!{button}.hidden && /^Show .* new sample/.test({button}.textContent)"),
           "no button of new samples")
    before = browser.ask("document.querySelector('#samples-body .shelf').textContent")
    wait_for_update(browser)
    expect(browser.ask("document.querySelector('#samples-body .shelf').textContent") == before,
           "samples move by themselves")
    browser.ask("(s => { s.value = 'newest first'; s.dispatchEvent(new Event('change')); })(order)")
    expect(browser.ask(f"{button}.hidden"), "the button stays when all is shown")
    newest = "document.querySelector('.sample h3').textContent"
    first = browser.ask(newest)
    wait_for_update(browser)
    browser.ask(f"{button}.click()")
    expect(browser.ask(newest) != first, "the button shows nothing")
    expect(browser.ask("order.value") == "newest first", "the order is another")


def main():
    invar, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    browser = Browser(program())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    watch_serve.os.chdir(folder)
    pathlib.Path("tiny.ini").write_text(tiny.recipe(100000))
    run = train(str(invar), *WORDS)
    expect(has_saved("live"), "the run saves nothing")
    watch = Watch(str(invar), "live")
    expect(browser.show(f"http://127.0.0.1:{watch.port}/", 1200, False), "the page does not load")
    expect(browser.wait("document.documentElement.hasAttribute('data-ready')"), "it is not ready")
    browser.wait("document.querySelector('.chart .line path') !== null")
    check_state_kept(browser)
    check_samples_wait(browser)
    run.kill()
    run.wait(60)
    expect(browser.wait(f"{LIVE} === 'over'"), f"of a killed run the page says {browser.ask(LIVE)}")
    dead = browser.ask(ENTRIES)
    run = train(str(invar), *WORDS)
    expect(browser.wait(f"{LIVE} === 'live'") and browser.wait(f"{ENTRIES} !== {dead!r}"),
           f"of a resumed run it says {browser.ask(LIVE)}, {browser.ask(ENTRIES)}")
    expect("2 segments" in browser.ask(ENTRIES), "the resume is not there")
    expect(browser.ask("document.documentElement.dataset.failed || ''") == "", "a script failed")
    (folder / "live.png").write_bytes(browser.whole_page(1200))
    run.kill()
    watch.process.kill()
    browser.close()
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
