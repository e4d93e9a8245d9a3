"""Alerts on the controller and the endpoint: its certificate, its keys, what Prometheus scrapes. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.alerts.alert import alert

DAY_S = 86_400
EXPIRY_S = 7 * DAY_S
"""Time before a key's end at which its owner is reminded. A day after the end the reminder ends too."""
CERTIFICATE_DAYS = 14
"""Both the gateway and certbot renew a certificate 30 days before its end: one with fewer days is not renewed."""

CONTROLLER = (
    alert(
        "CertificateExpires",
        f"sparkfleet_certificate_expiry_timestamp_seconds - time() < {CERTIFICATE_DAYS} * 86400",
        "1h",
        "warning",
        summary="The certificate of {{ $labels.endpoint }} has {{ $value | humanizeDuration }} left.",
        means="Clients refuse the endpoint from its end on.",
        look="`sparkfleet status`: the certificate, and the reason if newer files cannot be used.",
        do="Renew its files on the head, which are read within seconds; or set `gateway: {tls: generated}`.",
    ),
    alert(
        "ControllerGone",
        'absent(up{job="controller"} == 1)',
        "2m",
        "critical",
        summary="The controller's metrics have been missing for two minutes.",
        means="Nothing is restarted or planned again while it is away; engines and gateways go on.",
        look="`sparkfleet status`: it distinguishes down (as after your own `sparkfleet down`), unreachable, held and no"
        " controller.",
        do="The section above with the condition's name.",
    ),
    alert(
        "TargetMissing",
        'up{job=~"gateway|vllm|sglang|trtllm|llama.cpp"} == 0',
        "2m",
        "warning",
        summary="{{ $labels.job }} at {{ $labels.instance }} does not answer Prometheus.",
        means="Its figures are missing; the process may hang or be gone.",
        look="`sparkfleet status`; the target's page in Prometheus has the error.",
        do="A gateway or group that hangs is replaced by itself; an error 401 is a stale token file.",
    ),
    alert(
        "ControllerTrouble",
        "sparkfleet_controller_trouble == 1",
        "30s",
        "critical",
        summary="The controller's own work fails or does not end.",
        means="Nothing is restarted or planned again until it works.",
        look="`sparkfleet status`: the reason; `logs/controller.log` on the head has more.",
        do="By the reason; a full disk and an unreadable store have sections above. If Ray Serve does not answer, the"
        " reason has the `kill` of its process on the head: Ray starts another one, and engines go on.",
    ),
    alert(
        "ControllerWarning",
        "sparkfleet_controller_warnings > 0",
        "1m",
        "warning",
        summary="The controller reports {{ $value }} troubles in which it works on.",
        means="A rail without a carrier, a node or an entry that does not answer, a full disk, or a copy of its store that"
        " could not be made.",
        look="`sparkfleet status`: it names them.",
        do="By the reason; a full disk has a section above.",
    ),
    alert(
        "KeyExpires",
        f"sparkfleet_key_expires_seconds - time() < {EXPIRY_S} > {-DAY_S}",
        "0s",
        "warning",
        summary="The API key {{ $labels.key }} expires in {{ $value | humanizeDuration }}; below zero it has expired.",
        means="After that, requests with it are refused with 401.",
        look="`sparkfleet keys list`: its expiry and its last use.",
        do="`sparkfleet keys limit {{ $labels.key }} --expires 90d` gives it a later end."
        " If nobody uses it: `sparkfleet keys revoke {{ $labels.key }}`.",
    ),
)
