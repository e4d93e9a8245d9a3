"""Prometheus and Alertmanager in a lab, with the shipped rules made quick."""

import re
import subprocess
import threading
import time
from contextlib import contextmanager

import httpx
import yaml

from sparkfleet.telemetry.alerts import ALERTS, EVERY_ALERT
from sparkfleet.telemetry.recording import RECORDING
from sparkfleet.telemetry.rule_values import rule_file

WINDOWS = {
    "1m": "6s",
    "2m": "8s",
    "5m": "10s",
    "10m": "15s",
    "15m": "20s",
    "30m": "30s",
    "1h": "45s",
    "6h": "2m",
    "1d": "5m",
}
HEAD, OTHER = "spark1", "spark2"
PORTS = 9390, 9393
FIRES_S = 90
CLEARS_S = 150


def quick(rule):
    """The same rule with short windows, and without a wait if it is an alert."""
    expr = re.sub(r"\[(\w+)\]", lambda one: f"[{WINDOWS[one[1]]}]", rule.expr)
    expr = re.sub(r"offset (\w+)", lambda one: f"offset {WINDOWS[one[1]]}", expr)
    return rule.model_copy(update={"expr": expr} | ({"lasts": "0s"} if hasattr(rule, "lasts") else {}))


def quick_file(groups, source):
    """A rule file of quick rules."""
    return rule_file(
        [one.model_copy(update={"interval": "1s", "rules": tuple(map(quick, one.rules))}) for one in groups],
        source,
    )


class Watch:
    """Prometheus and Alertmanager on the head of a fleet, with the files of `observe config` and quick rules."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.fired, self.missed, self.stuck, self.broken = set(), [], [], []
        self.all_fired = set()
        self._http = httpx.Client(timeout=5, trust_env=False)
        self._processes = []
        self._names = {}
        directory = fleet.directory / "observe"
        fleet.ok("observe", "config", str(directory))
        config = yaml.safe_load((directory / "prometheus.yml").read_text())
        config["global"] |= {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["http_sd_configs"][0]["refresh_interval"] = "1s"
        config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{PORTS[1]}"]}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "rules" / "alerts.yaml").write_text(quick_file(ALERTS, "alerts"))
        (directory / "rules" / "recording.yaml").write_text(quick_file(RECORDING, "recording"))
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self._run(
            "prometheus", f"--config.file={directory}/prometheus.yml", f"--web.listen-address=0.0.0.0:{PORTS[0]}",
            "--storage.tsdb.path=/tmp/prometheus",
        )  # fmt: skip
        self._run(
            "prometheus-alertmanager", f"--config.file={directory}/alertmanager.yml", "--cluster.listen-address=",
            f"--web.listen-address=0.0.0.0:{PORTS[1]}", "--storage.path=/tmp/alertmanager",
        )  # fmt: skip
        self._ended = threading.Event()
        self._poll = threading.Thread(target=self._polling)
        self._poll.start()

    def _run(self, *argv):
        with (self.fleet.directory / f"{argv[0]}.log").open("w") as log:
            argv = self.fleet.lab.argv(HEAD, list(argv))
            self._processes.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def _polling(self):
        while not self._ended.wait(0.5):
            try:
                self._names = self.active()
            except (httpx.HTTPError, ValueError):
                continue
            self.fired |= self._names
            self.all_fired |= self._names

    def active(self):
        """Names of the alerts that Alertmanager has now."""
        url = f"http://{self.fleet.lab.nodes[0].address}:{PORTS[1]}/api/v2/alerts"
        return {one["labels"]["alertname"] for one in self._http.get(url).json()}

    def query(self, expr):
        """Values of an expression."""
        url = f"http://{self.fleet.lab.nodes[0].address}:{PORTS[0]}/api/v1/query"
        return self._http.get(url, params={"query": expr}, timeout=60).json()["data"]["result"]

    def attempt(self, inject, *args):
        """Inject a fault; one that cannot be injected does not hide the others."""
        try:
            inject(*args)
        except Exception as error:
            self.broken.append((getattr(inject, "__name__", inject), args[:3], repr(error)[:1500]))
            print(f"{time.strftime('%X')} {self.broken[-1]}", flush=True)

    @contextmanager
    def fires(self, *names, within=FIRES_S):
        """Inside, the faults of these alerts are injected; it waits until all have fired, and notes those that have not."""
        wanted = {f"Sparkfleet{name}" for name in names}
        self.fired -= wanted
        yield
        end = time.monotonic() + within
        while wanted - self.fired and time.monotonic() < end:
            time.sleep(0.5)
        for name in sorted(wanted - self.fired):
            self.missed.append((name, self._values(name)))
            print(self.missed[-1], flush=True)
        print(
            f"{time.strftime('%X')} fired: {sorted(wanted & self.fired)}; not: {sorted(wanted - self.fired)}",
            flush=True,
        )

    def _values(self, name):
        """Values of the series in an alert's expression."""
        rule = quick(next(one for one in EVERY_ALERT if one.name == name))
        series = set(re.findall(r"sparkfleet[:_][\w:]+", rule.expr))
        return {one: [(row["metric"], row["value"][1]) for row in self.query(one)][:6] for one in series}

    def clears(self, *names, within=CLEARS_S):
        """Waits until none of these alerts is active any more, and notes those that are."""
        wanted = {f"Sparkfleet{name}" for name in names}
        end = time.monotonic() + within
        while wanted & self._names and time.monotonic() < end:
            time.sleep(0.5)
        self.stuck += sorted(wanted & self._names)
        print(
            f"{time.strftime('%X')} cleared: {sorted(wanted - self._names)}; not: {sorted(wanted & self._names)}",
            flush=True,
        )

    def end(self):
        """Both programs are gone."""
        self._ended.set()
        self._poll.join()
        self._http.close()
        self.fleet.lab.exec(HEAD, ["pkill", "^prometheus"])  # of this node: it has processes of its own
        for process in self._processes:
            process.wait(30)
