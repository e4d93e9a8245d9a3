"""Pictures of the dashboards: what a real Prometheus has of a fleet, drawn by Grafana's own panel components.

Grafana's server is in no package registry and is not started. `scripts/dashboard_page` has the panels that Grafana publishes
for other pages, and draws the timeline of states itself (decision 104).
"""

import json
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import httpx
import yaml
from playwright.sync_api import sync_playwright
from shown import substituted

from sparkfleet.telemetry.dashboards.boards import DASHBOARDS

SOURCE = Path(__file__).parents[2] / "scripts" / "dashboard_page"
PORT = 9396
EVERY_S = 5
"""Seconds between two points of a series."""
WIDTH = 1400
PAGE = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0 }} {style}</style><div id="board"></div>
<script>window.process = {{env: {{}}}}; window.SHOWN = {shown}</script><script>{script}</script>"""


@contextmanager
def prometheus_on_head(fleet):
    """Prometheus with the files of `observe config`, on the fleet's head, every two seconds. Yields its URL."""
    directory = fleet.directory / "observe"
    fleet.ok("observe", "config", str(directory))
    path = directory / "prometheus.yml"
    config = yaml.safe_load(path.read_text())
    config["global"] |= {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config["scrape_configs"][0]["http_sd_configs"][0]["refresh_interval"] = "2s"
    path.write_text(yaml.safe_dump(config))
    rules = directory / "rules" / "recording.yaml"
    rules.write_text(re.sub(r"(interval: )\d+[sm]\b", r"\g<1>2s", rules.read_text()))
    for one in (directory, *directory.rglob("*")):
        one.chmod(0o755 if one.is_dir() else 0o644)
    head = fleet.lab.nodes[0]
    argv = ["prometheus", f"--config.file={path}", f"--web.listen-address=0.0.0.0:{PORT}"]
    with (fleet.directory / "prometheus.log").open("w") as log:
        argv = fleet.lab.argv(head.name, [*argv, "--storage.tsdb.path=/tmp/prometheus"])
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield f"http://{head.address}:{PORT}"
    finally:
        fleet.lab.exec(head.name, ["pkill", "^prometheus"])  # of this node: it has processes of its own
        process.wait(30)


def documents():
    """The dashboards as Grafana reads them, by their names."""
    place = files("sparkfleet.telemetry.dashboards") / "json"
    return {
        board.uid.removeprefix("sparkfleet-"): json.loads((place / f"{board.uid}.json").read_text())
        for board in DASHBOARDS
    }


def answers(prometheus, dashboard, begun, ended):
    """The series of each panel between two Unix times, by its title."""
    found = {}
    span = {"start": begun, "end": ended, "step": EVERY_S}
    with httpx.Client(base_url=prometheus, timeout=60, trust_env=False) as client:
        for panel in dashboard["panels"]:
            found[panel["title"]] = [
                {"target": target, "result": _range(client, substituted(target["expr"]), span)}
                for target in panel.get("targets", ())
            ]
    return found


def _range(client, expr, span):
    answer = client.get("/api/v1/query_range", params={"query": expr, **span}).json()
    assert answer["status"] == "success", (expr, answer)
    return answer["data"]["result"]


def build(directory):
    """The page's script and style, from packages of npm: (script, style)."""
    for name in ("package.json", "page.jsx"):
        shutil.copy(SOURCE / name, directory)
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    subprocess.run([*install, "--legacy-peer-deps"], cwd=directory, check=True, timeout=600)
    bundle = ["--bundle", "--minify", "--outfile=page.js", "--define:global=window", "--log-level=error"]
    bundle += ['--define:process.env.NODE_ENV="production"']
    subprocess.run(
        [directory / "node_modules/.bin/esbuild", "page.jsx", *bundle], cwd=directory, check=True, timeout=120
    )
    return (directory / "page.js").read_text(), (directory / "page.css").read_text()


def draw(prometheus, begun, directory, pictures):
    """A PNG of each dashboard from `begun` (Unix seconds) until now. Yields their paths."""
    script, style = build(directory)
    ended = time.time()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, dashboard in documents().items():
            shown = {"dashboard": dashboard, "from": begun * 1000, "to": ended * 1000}
            shown["panels"] = answers(prometheus, dashboard, begun, ended)
            page = browser.new_page(viewport={"width": WIDTH, "height": 900})
            faults = []
            page.on("pageerror", lambda error, faults=faults: faults.append(str(error)))
            text = PAGE.format(style=style, shown=_inline(json.dumps(shown)), script=_inline(script))
            (directory / f"{name}.html").write_text(text)
            page.goto((directory / f"{name}.html").as_uri())
            page.wait_for_timeout(3000)
            assert not faults, faults
            path = pictures / f"dashboard-{name}.png"
            page.screenshot(path=path, full_page=True)
            yield path
        browser.close()


def _inline(script):
    """JavaScript that does not end its element."""
    return script.replace("</script", "<\\/script")
