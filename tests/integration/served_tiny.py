"""`tiny` of a real fleet: requests to it, its group, its processes."""

import threading
import time

import httpx
import openai

from sparkfleet.controlplane.ray.ray_process import LABEL
from sparkfleet.runtime import processes


def serve_tiny(fleet):
    """`tiny` serves and nothing else, whatever the test before did."""
    for other in [d["name"] for d in fleet.deployments() if d["name"] != "tiny"]:
        fleet.ok("delete", "--yes", other)
    # Also if it serves: the file before this one may have left it with another engine or other sizes.
    fleet.apply(fleet.write("tiny.yaml", fleet.spec()))
    fleet.until(lambda: ready(fleet) and len(fleet.deployment()["groups"]) == 1)


class Load:
    """Requests in a thread, one after the other, as long as it is entered."""

    def __init__(self, fleet, model="tiny", max_tokens=4, pause=0.02):
        self.statuses = []
        """200, or an error in words."""
        self._fleet, self._model, self._max_tokens, self._pause = fleet, model, max_tokens, pause
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def _work(self):
        headers = {"authorization": f"Bearer {self._fleet.key}"}
        body = {"model": self._model, "prompt": "Hello", "max_tokens": self._max_tokens}
        with httpx.Client(base_url=self._fleet.endpoint, headers=headers, timeout=60) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/completions", json=body)
                    self.statuses.append(200 if answer.status_code == 200 else f"{answer}: {answer.text}")
                except httpx.HTTPError as error:
                    self.statuses.append(type(error).__name__)
                time.sleep(self._pause)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def group(fleet, name="tiny"):
    return fleet.deployment(name)["groups"][0]


def engine_pid(group):
    """The process of rank 0; None as long as it is not started."""
    return group["ranks"][0]["pid"] if group["ranks"] else None


def ready(fleet, name="tiny"):
    found = fleet.deployment(name)
    return found is not None and found["state"] == "ready"


def actors(fleet, name):
    """Process ids of a kind of actor of this fleet."""
    return [p.pid for p in processes.labelled({LABEL: fleet.paths.label}) if f"ray::{name}" in p.command]


def models(fleet):
    """Models that the endpoint lists."""
    with openai.OpenAI(base_url=fleet.endpoint, api_key=fleet.key) as client:
        return client.models.list().data


def is_down(fleet):
    """True if `status` reports it down and without deployments, under the fields of a fleet that is up."""
    status = fleet.json("status")
    return (status["up"], status["deployments"]) == (False, [])
