from sparkfleet.runtime import boot_id
from sparkfleet.runtime.boot_id import this_boot, up_s


def test_a_boot_keeps_its_id_while_its_age_grows(tmp_path, monkeypatch):
    uptime, before = tmp_path / "uptime", this_boot()
    monkeypatch.setattr(boot_id, "UPTIME", uptime)
    uptime.write_text("9000000.50 12.25\n")
    age = up_s()
    uptime.write_text("9000060.50 13.00\n")
    assert (this_boot(), up_s() - age) == (before, 60.0)
