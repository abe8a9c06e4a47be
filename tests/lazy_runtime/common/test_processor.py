"""What is known of the processor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lazy_runtime.common import processor

INTEL = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: sse avx2\n\nprocessor\t: 1\n"
)
AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: avx2 sse\n\n"
ARM = "processor\t: 0\nFeatures\t: asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n\n"


@pytest.fixture(autouse=True)
def fresh():
    def forget():
        processor._fields.cache_clear()
        processor.description.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize(
    ("text", "model", "is_intel"), [(INTEL, "Intel(R) Xeon(R)", True), (AMD, "AMD EPYC", False), (ARM, "0xd40", False)]
)
def test_by_what_linux_says(monkeypatch, text, model, is_intel):
    monkeypatch.setattr(Path, "read_text", lambda path: text)
    assert processor.description().startswith(f"{model} (")
    assert processor.is_intel() is is_intel


def test_instruction_sets_count_in_any_order(monkeypatch):
    found = []
    for flags in ("sse avx2", "avx2 sse", "sse"):
        processor._fields.cache_clear()
        processor.description.cache_clear()
        monkeypatch.setattr(Path, "read_text", lambda path, flags=flags: f"model name: x\nflags: {flags}\n\n")
        found.append(processor.description())
    assert found[0] == found[1] != found[2]


def test_other_systems(monkeypatch):
    def missing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert processor.description()
    assert not processor.is_intel()


@pytest.mark.parametrize(
    ("text", "more", "is_fast"),
    [
        (INTEL, "", False),
        (INTEL, "avx512_bf16", False),
        (INTEL, "avx512_bf16 amx_bf16", True),
        (AMD, "", False),
        (AMD, "avx512_bf16", True),
        (ARM, "", False),
        (ARM, "bf16", True),
        ("", "", True),
    ],
)
def test_products_of_bfloat16(monkeypatch, text, more, is_fast):
    monkeypatch.setattr(Path, "read_text", lambda path: re.sub("(sse|asimd)", rf"\1 {more}", text))
    assert processor.has_fast_bfloat16() is is_fast
