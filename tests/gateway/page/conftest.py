"""The page's scripts in playwright's own node, before a document that draws nothing."""

import json
import subprocess
from importlib.resources import files
from pathlib import Path

import playwright
import pytest

NODE = Path(playwright.__file__).parent / "driver" / "node"
STATIC = files("sparkfleet.gateway.page") / "static"


@pytest.fixture
def run(tmp_path):
    """Runs a script with the page's own and `dom.mjs` beside it; what it returns."""
    for one in STATIC.iterdir():
        if one.name.endswith(".js"):
            text = one.read_text().replace('"/page/', '"./').replace('.js";', '.mjs";')
            (tmp_path / one.name.replace(".js", ".mjs")).write_text(text)
    (tmp_path / "dom.mjs").write_text((Path(__file__).parent / "dom.mjs").read_text())
    html = json.dumps((STATIC / "index.html").read_text())
    head = f'import {{ $, answers, make, requests, tick, timers }} from "./dom.mjs";\nmake({html});\n'
    settled = "const settled = async () => { for (let i = 0; i < 50; i++) await null; };\n"

    def running(script, **given):
        values = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
        body = f"const result = await (async () => {{\n{script}\n}})();\nconsole.log(JSON.stringify(result));"
        (tmp_path / "test.mjs").write_text(head + settled + values + body + "\nprocess.exit(0);\n")
        done = subprocess.run(
            [NODE, str(tmp_path / "test.mjs")], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return running
