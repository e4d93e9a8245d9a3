"""Draws the pictures of the README from a fleet that runs: two simulated Sparks under load, and the plan of two real ones.

    python tests/integration/pictures.py        # by scripts/pictures; needs root, tmux, Chromium and npm

Every picture is what a command printed or a browser drew: SVG of the terminal's own characters, PNG of the page and of the
dashboards (`dashboard_pictures.py`). The engines
of the simulated Sparks are the packaged fake one, so their numbers are no measurements of anything, and the README says so.
"""

import base64
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dashboard_pictures
from asking import Asking
from lab_fleet import SPARKFLEET
from pair_fleet import TINY, Pair
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text
from tmux import Tmux

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "img"
COLUMNS, LINES = 104, 30
LOAD_S = 300
"""Seconds under load before the pictures are taken: some series of the dashboards are means of five minutes."""
PLAN = (
    "plan",
    *("-i", "docs/examples/inventory-two-sparks.yaml", "--assume", "dgx-spark"),
    "deployments/qwen3.6-27b-auto.yaml",
)


def main():
    """Draw all of them."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    draw_plan()
    with tempfile.TemporaryDirectory(prefix="pictures") as place:
        pair = Pair(Path(place), real=False)
        try:
            draw_fleet(pair.fleet)
        finally:
            pair.end()


def draw_plan():
    """The plan of the README."""
    argv = ["env", "HF_HUB_OFFLINE=1", f"COLUMNS={COLUMNS - 2}", SPARKFLEET, *PLAN]
    lines = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False).stdout
    save("plan", Text(lines.rstrip()), f"sparkfleet plan {PLAN[-1]}")


def draw_fleet(fleet):
    """`status`, `top` and the page of a fleet with two deployments under load and two on demand, one of them loaded."""
    paced = "env: {FAKE_ENGINE: '1', FAKE_START_S: '0', FAKE_SAYS: '', FAKE_ITL_MS: '25'}\n"
    fleet.apply(
        TINY.replace("name: tiny", "name: assistant") + "nodes: [spark1]\n" + paced, name="assistant.yaml"
    )
    fleet.apply(TINY.replace("name: tiny", "name: both") + "parallel: {tp: 2}\n" + paced, name="both.yaml")
    for name in ("eyes", "pilot"):
        spec = TINY.replace("name: tiny", f"name: {name}") + "nodes: [spark2]\non_demand: true\nidle: 1800\n"
        fleet.apply(spec + paced, name=f"{name}.yaml")
    begun = time.time()
    with (
        dashboard_pictures.prometheus_on_head(fleet) as prometheus,
        Asking(fleet, "assistant", streams=3),
        Asking(fleet, "both", streams=2),
    ):
        fleet.ok("ask", "eyes", "Hello")
        time.sleep(LOAD_S)
        save("status", Text(fleet.ok("status").rstrip()), "sparkfleet status")
        draw_top(fleet)
        draw_page(fleet)
        with tempfile.TemporaryDirectory(prefix="dashboards") as place:
            for path in dashboard_pictures.draw(prometheus, begun, Path(place), PICTURES):
                print(f"docs/img/{path.name}: {path.stat().st_size // 1000} kB")


def draw_top(fleet):
    """`top` after some seconds of its own."""
    terminal = Tmux(fleet.directory, {}, [SPARKFLEET, "top"], 140, 16)
    try:
        time.sleep(30)
        save("top", Text.from_ansi(terminal.shown(escapes=True).rstrip("\n")), "sparkfleet top")
    finally:
        terminal.end()


def draw_page(fleet):
    """The page at `/`, by a browser on the head, where it needs no key."""
    url = fleet.endpoint().removesuffix("/v1") + "/"
    argv = [sys.executable, __file__, "page", url]
    done = fleet.lab.exec(fleet.lab.nodes[0].name, argv, timeout_s=90)
    if not done.stdout:
        sys.exit(f"the browser drew no page: {done.stderr[-2000:]}")
    (PICTURES / "page.png").write_bytes(base64.b64decode(done.stdout))
    print(f"docs/img/page.png: {(PICTURES / 'page.png').stat().st_size // 1000} kB")


def draw_page_here(url):
    """On the head: the page after it has polled some seconds, on standard output."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(url)
        page.wait_for_timeout(10_000)
        print(base64.b64encode(page.screenshot()).decode())
        browser.close()


def save(name, text, title):
    """SVG of a terminal with this text."""
    width = max(COLUMNS, *(len(line) for line in text.plain.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(text, soft_wrap=True)
    # rich's fonts are at another site; without them the viewer's own monospaced one is taken.
    svg = re.sub(
        r"@font-face \{.*?\}\s*", "", console.export_svg(title=title, unique_id=name), flags=re.DOTALL
    )
    (PICTURES / f"{name}.svg").write_text(svg)
    print(f"docs/img/{name}.svg: {len(svg) // 1000} kB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["page"]:
        draw_page_here(*sys.argv[2:])
    else:
        main()
