"""Containers of `observe up`: images by digest, and the command line that starts each. Pure."""

from __future__ import annotations

from typing import Literal

from sparkfleet.hostfacts.container import Tool
from sparkfleet.values import Value

ObservePart = Literal["prometheus", "alertmanager", "grafana"]
PARTS: tuple[ObservePart, ...] = ("prometheus", "alertmanager", "grafana")
RETENTION = "30d"
RETENTION_SIZE = "8GB"
"""A fleet of eight nodes writes about 100 MB a day."""
TOKEN = "/etc/sparkfleet/metrics.token"  # noqa: S105 (a path)
DASHBOARDS = "/etc/grafana/dashboards"
PASSWORD_FILE = "grafana.password"  # noqa: S105 (a name)
READY_PATHS: dict[ObservePart, str] = {
    "prometheus": "/-/ready",
    "alertmanager": "/-/ready",
    "grafana": "/api/health",
}
"""Paths that answer 200 once the program works."""


class ObserveImages(Value):
    """Images by digest; each digest is a list for x86-64 and arm64."""

    prometheus: str = "docker.io/prom/prometheus:v3.5.0@sha256:" + (
        "63805ebb8d2b3920190daf1cb14a60871b16fd38bed42b857a3182bc621f4996"
    )
    alertmanager: str = "docker.io/prom/alertmanager:v0.28.1@sha256:" + (
        "27c475db5fb156cab31d5c18a4251ac7ed567746a2483ff264516437a39b15ba"
    )
    grafana: str = "docker.io/grafana/grafana:12.3.1@sha256:" + (
        "2175aaa91c96733d86d31cf270d5310b278654b03f5718c59de12a865380a31f"
    )


class ObservePorts(Value):
    """Addresses that the three programs listen on."""

    host: str = "127.0.0.1"
    """Of Grafana; Prometheus and Alertmanager have no login and stay on loopback."""
    prometheus: int = 9090
    alertmanager: int = 9093
    grafana: int = 3000

    def of(self, part: ObservePart) -> tuple[str, int]:
        """Host and port of one program."""
        port: int = getattr(self, part)
        return (self.host if part == "grafana" else "127.0.0.1"), port


class ObserveHost(Value):
    """The head, as far as the containers need it."""

    tool: Tool
    fleet: str
    uid: int
    gid: int
    root: str
    """The fleet's state directory."""

    @property
    def directory(self) -> str:
        """Directory of the files and the data."""
        return f"{self.root}/observe"

    def name(self, part: ObservePart) -> str:
        """Name of a container."""
        return f"sparkfleet-{self.fleet}-{part}"


def data_directories(host: ObserveHost) -> tuple[str, ...]:
    """Directories that have to exist, and belong to the fleet's user."""
    return tuple(f"{host.directory}/data/{part}" for part in PARTS)


def container_argv(
    part: ObservePart, host: ObserveHost, ports: ObservePorts, images: ObserveImages
) -> tuple[str, ...]:
    """`docker run` or `podman run` of one program: as the fleet's user, without capabilities or a writable root."""
    keep = ("--userns", "keep-id") if host.tool == "podman" and host.uid else ()
    volumes, env, words = _program(part, host, ports)
    image: str = getattr(images, part)
    return (
        *(host.tool, "run", "--detach", "--name", host.name(part)),
        *("--label", f"sparkfleet.observe={host.fleet}", "--restart", "unless-stopped", "--network", "host"),
        *("--user", f"{host.uid}:{host.gid}", *keep),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp"),  # noqa: S108
        *(word for one in volumes for word in ("--volume", one)),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
        image,
        *words,
    )


def _program(
    part: ObservePart, host: ObserveHost, ports: ObservePorts
) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Volumes, variables and arguments."""
    at = host.directory
    listen = "{}:{}".format(*ports.of(part))
    if part == "prometheus":
        files = (
            f"{at}/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            f"{at}/rules:/etc/prometheus/rules:ro",
        )
        volumes = (*files, f"{host.root}/metrics.token:{TOKEN}:ro", f"{at}/data/prometheus:/prometheus")
        words: tuple[str, ...] = (
            *("--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"),
            *(
                f"--storage.tsdb.retention.time={RETENTION}",
                f"--storage.tsdb.retention.size={RETENTION_SIZE}",
            ),
            f"--web.listen-address={listen}",
        )
        return volumes, {}, words
    if part == "alertmanager":
        config = f"{at}/alertmanager.yml:/etc/alertmanager/alertmanager.yml:ro"
        words = (
            *("--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager"),
            *(f"--web.listen-address={listen}", "--cluster.listen-address="),
        )
        return (config, f"{at}/data/alertmanager:/alertmanager"), {}, words
    volumes = (
        f"{at}/grafana/provisioning:/etc/grafana/provisioning:ro",
        f"{at}/grafana/dashboards:{DASHBOARDS}:ro",
        f"{at}/{PASSWORD_FILE}:/etc/grafana/{PASSWORD_FILE}:ro",
        f"{at}/data/grafana:/var/lib/grafana",
    )
    return volumes, _grafana(*ports.of("grafana")), ()


def _grafana(host: str, port: int) -> dict[str, str]:
    return {
        "GF_SERVER_HTTP_ADDR": host,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_SECURITY_ADMIN_PASSWORD__FILE": f"/etc/grafana/{PASSWORD_FILE}",
        "GF_AUTH_ANONYMOUS_ENABLED": "false",
        "GF_USERS_ALLOW_SIGN_UP": "false",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_NEWS_NEWS_FEED_ENABLED": "false",
        "GF_SECURITY_DISABLE_GRAVATAR": "true",
        "GF_PLUGINS_PREINSTALL_DISABLED": "true",
    }
