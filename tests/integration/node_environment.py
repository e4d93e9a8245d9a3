"""An environment as `up` makes it on a node: the wheel for nodes, beside the packages that are installed here."""

import compileall
import io
import shutil
import sysconfig
import venv
import zipfile
from pathlib import Path

import sparkfleet
from sparkfleet.install.release import release


def node_environment(directory):
    """Make it in a directory that nodes see; its interpreter. Built-in models, which `up` does not install, are added."""
    place = directory / "environment"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    zipfile.ZipFile(io.BytesIO(release().wheel)).extractall(packages)
    shutil.copytree(Path(sparkfleet.__file__).parent / "tiny_models", packages / "sparkfleet" / "tiny_models")
    # Entries of the directory that this adds are found after the wheel's, and its own .pth files are not read.
    (packages / "installed_here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    compileall.compile_dir(packages, quiet=1)  # nodes read this directory and write nothing into it
    return python
