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
