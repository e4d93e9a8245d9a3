from sparkfleet.doctor.findings import Finding, Severity
from sparkfleet.doctor.report import DoctorReport, lines


def finding(severity, subject="spark1", scope="node", **more):
    given = {"id": "some-check", "what": f"{subject} is {severity}", **more}
    return Finding(severity=severity, scope=scope, subject=subject, **given)


FINDINGS = [
    finding(Severity.OK),
    finding(Severity.WARNING, "spark2"),
    finding(Severity.ERROR, means="It is bad.", do=("sudo make it good", "reboot")),
    finding(Severity.ERROR, "spark1–spark2", "link"),
    finding(Severity.UNKNOWN, "spark2", what="x: not known of spark2, because ethtool was not found"),
    finding(Severity.UNKNOWN, "spark2", id="other", what="y: not known of spark2, because ethtool was not found"),
    finding(Severity.INFO, "home", "fleet"),
]  # fmt: skip


def test_worst_first_and_links_before_nodes():
    report = DoctorReport.of("home", FINDINGS)
    assert [group.subject for group in report.groups] == ["spark1–spark2", "spark1", "spark2", "home"]
    assert [one.severity for one in report.groups[1].findings] == ["error", "ok"]


def test_the_text_of_a_report():
    told = [line for _, line in lines(DoctorReport.of("home", FINDINGS))]
    start = told.index("node spark1")
    assert told[start : start + 4] == [
        "node spark1",
        "  error   spark1 is error   [some-check]",
        "          It is bad.",
        "          → sudo make it good",
    ]
    assert "  unknown ethtool was not found   [some-check, other]" in told
    assert not any("is ok" in line for line in told)


def test_what_eight_nodes_have_in_common_is_shown_once():
    names = [f"spark{number}" for number in (1, 2, 10)]
    alike = [
        one
        for name in names
        for one in (
            finding(Severity.WARNING, name, what=f"{name}: 9 files", do=("sudo more",)),
            finding(Severity.UNKNOWN, name, id="zones", what=f"z: not known of {name}, because of no zone"),
        )
    ]
    other = finding(Severity.WARNING, "spark2", what="spark2: 8 files", do=("sudo more",))
    told = [line for _, line in lines(DoctorReport.of("home", [*alike, other]))]
    assert told == [
        "node spark1",
        "  warning spark1: 9 files   [some-check]",
        "          → sudo more",
        "          The same on spark2, spark10.",
        "  unknown of no zone   [zones]",
        "          The same on spark2, spark10.",
        "",
        "node spark2",
        "  warning spark2: 8 files   [some-check]",
        "          → sudo more",
        "",
    ]


def test_another_remedy_is_shown_for_each_node_and_links_are_never_merged():
    steps = [finding(Severity.ERROR, name, what="bad", do=(f"ssh {name}",)) for name in ("spark1", "spark2")]
    cables = [finding(Severity.ERROR, name, "link", what="slow") for name in ("a–b", "b–c")]
    told = [line for _, line in lines(DoctorReport.of("home", [*steps, *cables]))]
    assert [line for line in told if line and not line.startswith(" ")] == [
        "link a–b",
        "link b–c",
        "node spark1",
        "node spark2",
    ]
    assert not any("The same" in line for line in told)


def test_control_characters_are_escaped():
    hostile = finding(Severity.ERROR, what="\x1b[2Jgone\nnode x", means="\x07", do=("\x1b]0;x\x07",))
    for _, line in lines(DoctorReport.of("home", [hostile])):
        assert line.isprintable()


def test_everything():
    told = [line for _, line in lines(DoctorReport.of("home", FINDINGS), everything=True)]
    assert any("is ok" in line for line in told)
    assert sum("unknown" in line for line in told) == 2


def test_summary():
    assert DoctorReport.of("home", FINDINGS).summary == "2 errors, 1 warning; 1 checks fine, 2 not known"
    assert DoctorReport.of("home", [finding(Severity.OK)]).summary == "Nothing is wrong; 1 checks fine"


def test_json():
    told = DoctorReport.of("home", FINDINGS).as_json()
    assert told["version"] == 1
    assert told["failed"]
    assert told["counts"] == {"error": 2, "warning": 1, "unknown": 2, "info": 1, "ok": 1}
    assert told["findings"][1]["do"] == ["sudo make it good", "reboot"]
    assert not DoctorReport.of("home", [finding(Severity.WARNING)]).failed
