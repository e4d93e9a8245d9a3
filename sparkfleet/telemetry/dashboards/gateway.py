"""The dashboard Gateway. Pure."""

from __future__ import annotations

from sparkfleet.telemetry.dashboards.panels import (
    NO_EXTERNAL,
    NO_FAILURE,
    TOKENS_S,
    GrafanaDashboard,
    Variable,
    one,
    panel,
    row,
)

_M = 'model=~"$model"'
GATEWAY = GrafanaDashboard(
    uid="sparkfleet-gateway",
    title="sparkfleet: Gateway",
    description="The endpoint: who calls it, how it answers.",
    variables=(Variable(name="model", label="Model", series="sparkfleet_requests_total"),),
    rows=(
        row(
            "Requests",
            panel(
                "Requests are answered, by status",
                "Requests per second by the status that the client saw; 499: it disconnected before.",
                "reqps",
                one(f"sum by (status) (rate(sparkfleet_requests_total{{{_M}}}[1m]))", "{{status}}"),
            ),
            panel(
                "Requests fail for these reasons",
                "Failed or refused requests per second, by reason.",
                "reqps",
                one(f"sum by (kind) (rate(sparkfleet_errors_total{{{_M}}}[5m]))", "{{kind}}"),
                may_be_empty=NO_FAILURE,
            ),
            panel(
                "Requests are in flight",
                "Requests that the gateways carry, by model, and those of them that wait for a slot of a group, or for the"
                " start of their model on demand.",
                "short",
                one(f"sum by (model) (sparkfleet_requests_in_flight{{{_M}}})", "{{model}}"),
                one(f"sum by (model) (sparkfleet_requests_waiting{{{_M}}})", "{{model}} waiting"),
            ),
            panel(
                "Requests were sent again to another engine",
                "Retries per second: an engine was lost before the first byte.",
                "reqps",
                one(f"sum by (model) (rate(sparkfleet_retries_total{{{_M}}}[5m]))", "{{model}}"),
                may_be_empty=NO_FAILURE,
                span=6,
            ),
            panel(
                "Requests left the fleet",
                "Requests per second that external endpoints of deployments answered.",
                "reqps",
                one(
                    f"sum by (model) (rate(sparkfleet_external_requests_total{{{_M}}}[5m]))",
                    "{{model}}",
                ),
                may_be_empty=NO_EXTERNAL,
                span=6,
            ),
            panel(
                "These keys send requests",
                "Requests per second by API key.",
                "reqps",
                one(f"sum by (key) (rate(sparkfleet_key_requests_total{{{_M}}}[5m]))", "{{key}}"),
                span=6,
            ),
            panel(
                "Paths of the API are used",
                "Requests per second by path.",
                "reqps",
                one(f"sum by (path) (rate(sparkfleet_requests_total{{{_M}}}[5m]))", "{{path}}"),
                span=6,
            ),
        ),
        row(
            "Times and tokens",
            panel(
                "First tokens arrive within this time",
                "TTFT of streamed answers: median and 95th percentile of five minutes.",
                "s",
                one(f"sparkfleet:ttft_seconds:p50_5m{{{_M}}}", "{{model}} p50"),
                one(f"sparkfleet:ttft_seconds:p95_5m{{{_M}}}", "{{model}} p95"),
            ),
            panel(
                "Answers are complete within this time",
                "From the request's headers to the end of its answer.",
                "s",
                one(f"sparkfleet:request_seconds:p50_5m{{{_M}}}", "{{model}} p50"),
                one(f"sparkfleet:request_seconds:p95_5m{{{_M}}}", "{{model}} p95"),
            ),
            panel(
                "Tokens go in and out",
                "Tokens per second of finished answers, as the engines count them.",
                TOKENS_S,
                one(f"sparkfleet:tokens:rate1m{{{_M}}}", "{{model}} {{kind}}"),
            ),
        ),
    ),
)
