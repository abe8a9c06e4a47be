"""The page of libraries, from a report."""

from __future__ import annotations

from tests.libraries import table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.libraries.test_trainer" name="test_losses[bert]" />
<testcase classname="tests.libraries.test_trainer" name="test_resuming_is_bit_for_bit[bert]"><failure /></testcase>
<testcase classname="tests.libraries.test_small_models" name="test_library[timm-tolerance6]"><skipped /></testcase>
</testsuite></testsuites>
"""


def test_the_page_says_what_passed_and_what_did_not(tmp_path, monkeypatch):
    monkeypatch.setattr(table.importlib.metadata, "version", lambda name: f"1.0 of {name}")
    (tmp_path / "report.xml").write_text(REPORT)
    table.write(tmp_path / "report.xml", tmp_path / "libraries.md")
    lines = (tmp_path / "libraries.md").read_text().splitlines()
    assert "| timm | 1.0 of timm | **a small model (skipped)** |" in lines
    assert (
        "| transformers | 1.0 of transformers | losses (bert), **resuming is bit for bit (bert) (failed)** |" in lines
    )
