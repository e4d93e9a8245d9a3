"""Clients that ask without a pause, from a node, and write down how each answer ended: as promised, or honestly not.

Run as a program it is the clients: one JSON object on standard input, one JSON line per answer on standard output.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx

HONEST = {"whole", "told", "refused", "reset"}
"""Ends of an answer that are allowed: with [DONE] and all its tokens; with an error that says so; without a
connection; or with one that broke, which every client notices. What may not be: an end that looks like one (`cut`),
none at all (`stuck`), or an error that blames the client, says nothing, or is a defect of the gateway (`wrong`)."""
LATER = (429, 500, 502, 503, 504)
"""Status codes after which clients of OpenAI try again. A 500 is an engine's own that was dying with the request in hand."""
STUCK_S = 120.0
PAUSE_S = 0.2
"""After an answer that was none."""


class Asking:
    """Clients on the head of a fleet, while it is entered.

    Args:
        fleet: it is asked over its endpoint.
        name: the public model name.
        streams: how many ask at once.
        tokens: of each answer.
        pause_s: between an answer and the next question.
        url: another address of the endpoint than the head's.
    """

    def __init__(self, fleet, name, streams=2, tokens=120, pause_s=0.0, url=""):
        self._fleet = fleet
        self._url = url
        self._told = {
            "model": name,
            "streams": streams,
            "tokens": tokens,
            "pause_s": pause_s,
            "key": fleet.key,
        }
        self.answers = []

    def __enter__(self):
        told = json.dumps({**self._told, "url": self._url or self._fleet.endpoint()})
        head = self._fleet.lab.nodes[0].name
        argv = self._fleet.lab.argv(head, [sys.executable, __file__])
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._process.stdin.write(told + "\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, *error):
        self._process.stdin.close()  # its end is when they stop asking
        self._reader.join(STUCK_S + 30)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()

    def _read(self):
        for line in self._process.stdout:
            self.answers.append(json.loads(line))

    @property
    def ends(self):
        """Number of answers by their end."""
        return Counter(answer["end"] for answer in self.answers)

    @property
    def dishonest(self):
        """Answers that a client would have taken for whole, or would still wait for."""
        return [answer for answer in self.answers if answer["end"] not in HONEST]

    def whole_since(self, at):
        """Number of answers that began after this moment (Unix seconds) are whole."""
        return sum(answer["end"] == "whole" and answer["began"] >= at for answer in self.answers)


def _ask(client, told):
    """One answer: its end, and the words about it."""
    body = {
        "model": told["model"],
        "prompt": "A rail is",
        "max_tokens": told["tokens"],
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {told['key']}"}
    url = told["url"] + "/completions"
    try:
        with client.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                response.read()
                return _refused(response.status_code, response.text)
            return _end(list(response.iter_lines()), told["tokens"])
    except httpx.ConnectError as error:
        return "refused", repr(error)
    except httpx.TimeoutException as error:
        return "stuck", repr(error)
    except httpx.TransportError as error:
        return "reset", repr(error)


def _refused(status, text):
    error = _error(text)
    told = status in LATER and error is not None and error.get("code") != "internal_error"
    return "told" if told else "wrong", f"{status} {text[:200]}"


def _error(text):
    """An error as OpenAI's clients expect it; None for anything else."""
    try:
        error = json.loads(text)["error"]
        return error if error["message"] and error["type"] else None
    except (ValueError, KeyError, TypeError):
        return None


def _end(lines, tokens):
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    if events and _error(events[-1]):
        return "told", events[-1][:200]
    if not events or events[-1] != "[DONE]":
        return "cut", f"{len(events)} events and no [DONE]"
    usage = next(
        (json.loads(event)["usage"] for event in events[-2::-1] if '"usage":{' in event.replace(" ", "")), {}
    )
    found = usage.get("completion_tokens")
    return ("whole", "") if found == tokens else ("cut", f"{found} tokens of {tokens} and [DONE]")


def _client(told, over, lock):
    with httpx.Client(timeout=STUCK_S) as client:
        while not over.is_set():
            began = time.time()
            end, words = _ask(client, told)
            line = {"began": began, "took_s": time.time() - began, "end": end, "words": words}
            with lock:
                print(json.dumps(line), flush=True)
            over.wait(told["pause_s"] if end == "whole" else max(PAUSE_S, told["pause_s"]))


def main():
    told = json.loads(sys.stdin.readline())
    over, lock = threading.Event(), threading.Lock()
    clients = [threading.Thread(target=_client, args=(told, over, lock)) for _ in range(told["streams"])]
    for client in clients:
        client.start()
    sys.stdin.read()
    over.set()
    for client in clients:
        client.join()


if __name__ == "__main__":
    main()
