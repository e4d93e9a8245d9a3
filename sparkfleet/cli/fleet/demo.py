"""`sparkfleet demo`: a model trained and served on this machine, and a question to it. Leaves it running."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sparkfleet.cli.clients.ask import print_answer
from sparkfleet.cli.deployment.apply import confirm_and_carry_out
from sparkfleet.cli.exit_codes import Exit
from sparkfleet.cli.options import DEFAULT_INVENTORY, InventoryOption, open_session, run
from sparkfleet.cli.output import console
from sparkfleet.cli.planning.plan_output import print_plans
from sparkfleet.fleet.demo.demo import (
    MODEL,
    demo_key,
    deployment_file,
    ensure_inventory,
    key_file,
    require_packages,
    require_this_machine,
)
from sparkfleet.fleet.deployments.apply import prepare_apply
from sparkfleet.fleet.session import Session
from sparkfleet.specs.load import load_deployments

QUESTION = "What is a DGX Spark?"
MAX_TOKENS = 256


def demo(
    inventory: InventoryOption = DEFAULT_INVENTORY,
    installed_s: Annotated[float, typer.Option("--installed-s", min=0, hidden=True)] = 0.0,
) -> int:
    """Train a small model, serve it on this machine and ask it a question. Leaves it running."""
    require_packages()
    if ensure_inventory(inventory):
        console.print(f"Wrote {inventory}: a fleet of this machine alone.", markup=False)
    return run(_demo(open_session(inventory), inventory, installed_s))


async def _demo(session: Session, inventory: Path, installed_s: float) -> int:
    require_this_machine(session)
    began = time.monotonic()
    code = await _serve(session)
    if code != Exit.DONE:
        return code
    served_s = time.monotonic() - began
    key = await demo_key(session)
    console.print(f'\n$ sparkfleet ask {MODEL} "{QUESTION}"', markup=False)
    await print_answer(session, MODEL, QUESTION, key, MAX_TOKENS)
    answered_s = time.monotonic() - began
    console.print(
        f"\nFirst answer after {installed_s + answered_s:.0f} s: installing {installed_s:.0f} s, "
        f"apply {served_s:.0f} s, key and answer {answered_s - served_s:.0f} s."
    )
    endpoint = (await session.controller()).address.endpoint
    console.print(
        _hints(endpoint, await asyncio.to_thread(key_file, session), inventory), markup=False, soft_wrap=True
    )
    return Exit.DONE


async def _serve(session: Session) -> int:
    specs = load_deployments([deployment_file()])
    prepared = await prepare_apply(session, specs)
    print_plans(prepared.planned)
    prepared.planned.require_feasible()
    if prepared.changes_nothing and prepared.planned.client is not None:
        return Exit.DONE
    return await confirm_and_carry_out(session, prepared, "Apply?", True)


def _program() -> str:
    """The program as it can be typed again."""
    if shutil.which("sparkfleet"):
        return "sparkfleet"
    if Path(sys.argv[0]).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m sparkfleet"
    return shlex.quote(sys.argv[0])


def _hints(endpoint: str, key: Path, inventory: Path) -> str:
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    program = _program()
    of = "" if inventory == DEFAULT_INVENTORY else f" -i {shlex.quote(str(inventory))}"
    return f"""
Try it by hand:
  curl {endpoint}/chat/completions -H "Authorization: Bearer $(cat {shlex.quote(str(key))})" \\
    -H "Content-Type: application/json" \\
    -d {shlex.quote(json.dumps(body))}

The fleet keeps running. To see its state, and to stop it:
  {program} status{of}
  {program} down{of}"""
