#!/usr/bin/env python3
"""Chats through the page of `bitnet serve demo`, and of a model that thinks, in headless Chromium at 1280 and 390 pixels,
light and dark, and takes pictures.

    cargo xtask page
    python3 tools/check-page/check_page.py target/release/bitnet pictures/ [--axe axe.min.js]

Needs the `playwright` package and a Chromium (`--chromium PATH`); with --axe, the file of the npm package axe-core, it
also checks accessibility. Prints one line per check; fails if a check fails.
"""

import argparse
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "check-server"))
from check_thinking import model_folder

MARKDOWN = "# Title\n\nSome **bold** [link](https://example.org/) <img src=x onerror=alert(1)>\n\n- a\n  - b\n\n```rust\nfn main() {}\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n"
FAILED = []


def check(what, holds):
    print("pass" if holds else "FAIL", what)
    if not holds:
        FAILED.append(what)


def settings(page):
    """Sets a seed, so that the answers are the same each time."""
    page.click("#show-settings")
    page.fill("#max_tokens", "200")
    page.fill("#seed", "1")
    page.click("#show-settings")


def talk(page, name, folder):
    settings(page)
    for question in ["First Citizen:", "Second Citizen:", "Third Citizen:"]:
        page.fill("#text", question)
        page.keyboard.press("Enter")
        page.wait_for_selector(".message.assistant:last-child .actions", timeout=60_000)
    page.screenshot(path=folder / f"{name}-talk.png")
    viewport = page.viewport_size["height"]
    box = page.locator("#form").bounding_box()
    check(f"{name}: the composer stays on screen after a long talk", box["y"] + box["height"] <= viewport + 1)
    bottom = page.evaluate("(t => t.scrollHeight - t.scrollTop - t.clientHeight < 60)(document.getElementById('talk'))")
    check(f"{name}: the view follows a reader who is at the bottom", bottom)
    count = page.locator(".message").count()
    page.fill("#text", "composed")
    page.evaluate("""document.getElementById('text').dispatchEvent(
        new KeyboardEvent('keydown', { key: 'Enter', isComposing: true, bubbles: true, cancelable: true }))""")
    check(f"{name}: Enter while an input method composes sends nothing", page.locator(".message").count() == count)
    page.reload()
    page.wait_for_timeout(300)
    check(f"{name}: a reload keeps the talk", page.locator(".message").count() == count)
    page.fill("#text", "word " * 20_000)
    page.keyboard.press("Enter")
    page.wait_for_selector("#notice button", timeout=60_000)
    check(f"{name}: a text that does not fit is kept and comes with a cure", page.input_value("#text").startswith("word"))
    page.screenshot(path=folder / f"{name}-too-long.png")


def markdown(page, name, folder, axe):
    page.evaluate("text => localStorage.setItem('bitnet.talk', JSON.stringify([{ role: 'assistant', content: text }]))", MARKDOWN)
    page.reload()
    page.wait_for_timeout(300)
    check(f"{name}: Markdown is shown, and HTML in it is text",
          page.locator(".body table").count() == 1 and page.locator(".code pre").count() == 1 and page.locator(".body img").count() == 0)
    page.click("#show-settings")
    page.click("#show-engine")
    page.wait_for_timeout(1000)
    check(f"{name}: the engine is shown as it works", page.inner_text("#running") == "0")
    computed, found, read = (page.inner_text(f"#{place}") for place in ("computed", "in-memory", "from-disk"))
    check(f"{name}: it tells where prompts came from ({computed}, {found}, {read})",
          int(computed) > 0 and int(found) > 0 and read == "0")
    page.screenshot(path=folder / f"{name}-engine.png")
    if axe:
        page.add_script_tag(path=axe)
        violations = page.evaluate("axe.run().then(result => result.violations.map(v => v.id))")
        check(f"{name}: axe finds nothing {violations}", not violations)


def thoughts(page, name, folder):
    """Talks to a model that thinks."""
    settings(page)
    sent = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.method == "POST" else None)
    for question in ["Why?", "And?"]:
        page.fill("#text", question)
        page.keyboard.press("Enter")
        page.wait_for_selector(".message.assistant:last-child .actions", timeout=60_000)
    thought = page.locator(".message.assistant:last-child details.thought")
    check(f"{name}: a thought is folded, and apart from the answer", thought.count() == 1 and thought.get_attribute("open") is None)
    thought.locator("summary").click()
    check(f"{name}: a click unfolds it", thought.get_attribute("open") is not None and "Enough." in thought.inner_text())
    page.screenshot(path=folder / f"{name}-thought.png")
    answers = [message for message in sent[-1]["messages"] if message["role"] == "assistant"]
    check(f"{name}: the next question goes with the thought", "Enough." in answers[0].get("reasoning_content", ""))
    page.reload()
    page.wait_for_timeout(300)
    check(f"{name}: a reload keeps thoughts", page.locator("details.thought").count() == 2)


@contextlib.contextmanager
def serving(program, model="demo"):
    """The address of a server."""
    command = [program, "serve", str(model), "--port", "0", "--log", "off"]
    command += ["--thinking-budget", "24", "--thinking-last-words", "\nEnough."]
    with (
        tempfile.TemporaryDirectory() as cache,
        subprocess.Popen([*command, "--cache-dir", cache], stderr=subprocess.PIPE, text=True) as server,
    ):
        try:
            said = next((line for line in server.stderr if "is served on" in line), "")
            yield re.search(r"http://[^/]+", said)[0]
        finally:
            server.terminate()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--axe")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as thinker,
        serving(args.program) as url,
        sync_playwright() as playwright,
    ):
        model_folder(pathlib.Path(thinker))
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                name = f"{width}-{scheme}"
                # The page's content security policy would refuse the scripts of the checks.
                context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True)
                page = context.new_page()
                faults = []
                page.on("pageerror", lambda fault, faults=faults: faults.append(str(fault)))
                page.goto(url)
                talk(page, name, args.folder)
                markdown(page, name, args.folder, args.axe)
                with serving(args.program, thinker) as thinking:
                    page.goto(thinking)
                    thoughts(page, name, args.folder)
                check(f"{name}: no script failed {faults}", not faults)
                context.close()
        browser.close()
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
