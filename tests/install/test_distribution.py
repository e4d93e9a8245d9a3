"""The wheel and the sdist: built, looked into, installed into clean environments of each Python, and used there.

An environment has the command line only: no Ray, no engine. Its verbs work on other machines, and name what is missing.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from sparkfleet.cli.verbs import VERBS

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from setuptools.build_meta import build_sdist, build_wheel
target = sys.argv[1]  # building changes the arguments
build_wheel(target)
build_sdist(target)
"""
NEEDED = (
    "sparkfleet/py.typed",
    "sparkfleet/knowledge/rules/rules.yaml",
    "sparkfleet/knowledge/measurements/benchmarks.csv",
    "sparkfleet/install/hashes.txt",
    "sparkfleet/engines/signatures.yaml",
)
HEAVY = ("ray", "torch", "vllm", "sglang", "prometheus_client", "uvicorn", "uvloop")
SUPPORTED = ("python3.11", "python3.12", "python3.13")


def run(*argv, cwd, **env):
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(one) for one in argv], cwd=cwd, env=clean | env, capture_output=True, text=True, check=False
    )


def interpreters(name):
    """Places of a Python: on the PATH, of pyenv, whose shim knows the selected versions only, and of uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    yield from filter(None, [shutil.which(name)])
    yield from (str(path) for path in sorted(pyenv.glob(f"versions/*/bin/{name}")))
    yield from (str(path) for path in sorted(uv.glob(f"*/bin/{name}")))


def works(python):
    """False also for the shim of a version manager whose Python is not installed."""
    code = "import sys, venv, ensurepip; print('python%d.%d' % sys.version_info[:2])"
    return run(python, "-c", code, cwd="/").stdout.strip()


PYTHONS = {
    name: found
    for name in SUPPORTED
    if (found := next((one for one in interpreters(name) if works(one) == name), None))
}


def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def in_metadata(wheel, name):
    """Name of a file of a wheel's metadata."""
    (found,) = (one for one in wheel.namelist() if one.endswith(f".dist-info/{name}"))
    return found


def content(wheel):
    """Digest of each file of a wheel but for the list of them."""
    archive = zipfile.ZipFile(wheel)
    return {
        name: hashlib.sha256(archive.read(name)).hexdigest()
        for name in archive.namelist()
        if not name.endswith(".dist-info/RECORD")
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(wheel, sdist), built from the files that git knows."""
    place = tmp_path_factory.mktemp("built")
    for name in tracked():
        target = place / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    venv.create(place / "builder", with_pip=True)
    python = place / "builder" / "bin" / "python"
    done = run(python, "-m", "pip", "install", "-q", "setuptools>=77", cwd=place)
    assert done.returncode == 0, done.stderr
    done = run(python, "-c", BUILD, place / "dist", cwd=place / "source")
    assert done.returncode == 0, done.stderr
    (wheel,) = (place / "dist").glob("*.whl")
    (sdist,) = (place / "dist").glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    package = {name for name in tracked() if name.startswith("sparkfleet/")}
    assert package <= names
    assert {*NEEDED} <= names
    assert any(name.startswith("sparkfleet/gateway/page/") and name.endswith(".html") for name in names)
    assert any("dashboard" in name and name.endswith(".json") for name in names)
    rest = names - package
    assert all(name.partition("/")[0].endswith(".dist-info") for name in rest), sorted(rest)


def test_the_sdist_builds_the_package_and_has_no_tests(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in tracked() if name.startswith("sparkfleet/")} <= names
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "constraints.txt"} <= names
    assert not {name for name in names if name.partition("/")[0] in ("tests", ".git", ".github", ".venv")}


def test_the_wheel_runs_on_every_processor_and_supported_python(built):
    """Pure, so that one wheel is that of aarch64, too."""
    assert built[0].name.endswith("-py3-none-any.whl")
    metadata = zipfile.ZipFile(built[0])
    assert b"Root-Is-Purelib: true" in metadata.read(in_metadata(metadata, "WHEEL"))
    native = {n for n in metadata.namelist() if Path(n).suffix in (".so", ".pyd", ".dylib", ".c", ".pyx")}
    assert not native
    text = metadata.read(in_metadata(metadata, "METADATA")).decode()
    needed = [
        line for line in text.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert needed
    assert not [line for line in needed if line.split()[1].partition("[")[0].partition("=")[0] in HEAVY]
    for extra in ("head", "local"):
        assert f"Provides-Extra: {extra}" in text


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request, built, tmp_path_factory):
    """bin/ of an environment with the wheel, without extras. Of each Python that is installed; the others are named."""
    missing = ", ".join(name for name in SUPPORTED if name not in PYTHONS)
    if missing:
        reporter = request.config.pluginmanager.getplugin("terminalreporter")
        reporter.write_line(f" {request.param}; not installed here, so not tried: {missing}")
    place = tmp_path_factory.mktemp(request.param)
    assert run(PYTHONS[request.param], "-m", "venv", place / "env", cwd=place).returncode == 0
    pip = place / "env" / "bin" / "pip"
    done = run(pip, "install", "-q", built[0], "--constraint", ROOT / "constraints.txt", cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "env" / "bin"


def test_a_supported_python_is_installed():
    assert PYTHONS, "no Python that sparkfleet supports"


def test_the_sdist_builds_the_same_wheel(installed, built, tmp_path):
    done = run(installed / "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, built[1], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (again,) = tmp_path.glob("*.whl")
    assert again.name == built[0].name
    assert content(again) == content(built[0])


def test_every_module_compiles_without_a_warning(installed, tmp_path):
    code = (
        "import compileall, sys, warnings, sparkfleet\n"
        "warnings.simplefilter('error')\n"
        "sys.exit(not compileall.compile_dir(sparkfleet.__path__[0], force=True, quiet=1))"
    )
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_comes_without_ray_and_engines(installed, tmp_path):
    code = f"import importlib.util as u; print([name for name in {HEAVY!r} if u.find_spec(name)])"
    assert run(installed / "python", "-c", code, cwd=tmp_path).stdout.strip() == "[]"


def test_every_verb_has_its_help(installed, tmp_path):
    code = "import sys\nfrom sparkfleet.cli.verbs import VERBS\nfor verb in VERBS.values(): verb.load()"
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for verb in ("init", "up", "apply", "keys", "doctor"):
        done = run(installed / "sparkfleet", verb, "--help", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert VERBS[verb].help.split(".")[0][:40] in " ".join(done.stdout.split())


def test_it_plans_for_machines_that_are_not_there(installed, tmp_path):
    file = ROOT / "deployments" / "qwen235b-tp2.yaml"
    shutil.copy(ROOT / "docs" / "examples" / "inventory-two-sparks.yaml", tmp_path / "inventory.yaml")
    done = run(
        installed / "sparkfleet", "plan", file, "--assume", "dgx-spark", "--offline",
        cwd=tmp_path, SPARKFLEET_HOME=str(tmp_path / "state"), HF_HUB_OFFLINE="1",
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "TP=2" in done.stdout


def test_a_fleet_of_this_machine_names_what_is_missing(installed, tmp_path):
    (tmp_path / "inventory.yaml").write_text("fleet: t\nhead: here\nnodes:\n  here: {address: local}\n")
    home = {"SPARKFLEET_HOME": str(tmp_path / "state")}
    done = run(installed / "sparkfleet", "status", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert "is down" in done.stdout
    done = run(installed / "sparkfleet", "up", cwd=tmp_path, **home)
    assert done.returncode == 1
    assert "pip install 'sparkfleet[local]'" in done.stderr
    assert "No module" not in done.stderr
    assert not list(tmp_path.glob("state/**/role.json")), "nothing was begun"


def test_it_packs_for_nodes_what_was_tested(installed, tmp_path):
    code = "from sparkfleet.install.release import release as r; print(*r().pins, sep='\\n')"
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ours = run(sys.executable, "-c", code, cwd=ROOT)
    assert any(line.startswith("ray==") for line in done.stdout.splitlines())
    assert done.stdout == ours.stdout, "wherever `up` runs, nodes get the same"
