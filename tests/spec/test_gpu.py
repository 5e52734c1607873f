"""GPU strings: both forms of the guide, the canonical form, and what is refused with which advice."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.errors import SpecError
from flowlite.spec.gpu import KINDS, MAX_PER_NODE, GpuRequest


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h100", GpuRequest("h100")),
        ("h100:8", GpuRequest("h100", 8)),
        ("h100:1", GpuRequest("h100")),
        ("h100-80gb.sxm.8x", GpuRequest("h100", 8, 80, "sxm")),
        ("h100-80gb.8x", GpuRequest("h100", 8, 80)),
        ("a100-80gb:4", GpuRequest("a100", 4, 80)),
        ("A100-80GB:4", GpuRequest("a100", 4, 80)),
        (" H100:8 ", GpuRequest("h100", 8)),
        ("h100.pcie:2", GpuRequest("h100", 2, None, "pcie")),
        ("h100-94gb.nvl.2x", GpuRequest("h100", 2, 94, "nvl")),
        ("mi300x:8", GpuRequest("mi300x", 8)),
        ("rtx4090", GpuRequest("rtx4090")),
        ("l40s.pcie.4x", GpuRequest("l40s", 4, None, "pcie")),
    ],
)
def test_reads_both_forms(text: str, expected: GpuRequest) -> None:
    assert GpuRequest.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("H100:1", "h100"),
        ("h100:8", "h100:8"),
        ("h100-80GB.SXM.8x", "h100-80gb.sxm.8x"),
        ("h100.8x", "h100:8"),
        ("h100.sxm", "h100.sxm.1x"),
        ("h100:08", "h100:8"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert str(GpuRequest.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("notagpu", "give one of b300, b200, h200, h100"),
        ("h10", "'h100'"),
        ("h101", "did you mean 'h100'"),
        ("8xh100", "did you mean 'h100:8'"),
        ("h100x8", "did you mean 'h100:8'"),
        ("h100:8x", "did you mean 'h100:8'"),
        ("h100-sxm5-80gb", "did you mean 'h100-80gb.sxm5.1x'"),
        ("nvidia-h100", "did you mean 'h100'"),
        ("rtx-4090", "did you mean 'rtx4090'"),
        ("rtx 4090", "did you mean 'rtx4090'"),
        ("mi300", "did you mean 'mi300x' or 'mi300a'"),
        ("h100:0", "at least 1, not 0"),
        ("h100:-1", "did you mean 'h100'"),
        ("h100:1000", "`num_instances` asks for more nodes"),
        ("h100-81gb", "h100-80gb or h100-94gb"),
        ("h100.oam", "has 'sxm' or 'sxm5' or 'pcie' or 'nvl'"),
        ("mi300a.oam", "no socket in its name"),
        ("cpu", "leave `gpu` out"),
        ("", "leave `gpu` out"),
        ("any", "name the model"),
        ("h100:", "did you mean 'h100'"),
        ("h100:８", "did you mean 'h100'"),
        ("h100\n:8", "did you mean 'h100:8'"),
    ],
)
def test_nonsense_is_refused_with_the_nearest_right_one(text: str, advice: str) -> None:
    with pytest.raises(SpecError, match=re.escape(advice)) as caught:
        GpuRequest.parse(text)
    assert text.strip() in str(caught.value) or repr(text) in str(caught.value)


def test_a_request_made_by_hand_is_checked_too() -> None:
    with pytest.raises(SpecError, match="at least 1"):
        GpuRequest("h100", 0)
    with pytest.raises(SpecError, match="not a GPU"):
        GpuRequest("H100")


def test_vendor() -> None:
    assert GpuRequest.parse("h100").vendor == "nvidia"
    assert GpuRequest.parse("mi300x").vendor == "amd"


@st.composite
def requests(draw: st.DrawFn) -> GpuRequest:
    kind = draw(st.sampled_from(sorted(KINDS)))
    memory = draw(st.sampled_from([None, *KINDS[kind].memory_gb]))
    socket = draw(st.sampled_from([None, *KINDS[kind].sockets]))
    return GpuRequest(kind, draw(st.integers(1, MAX_PER_NODE)), memory, socket)


@given(requests())
def test_canonical_form_is_read_back_to_the_same(request_: GpuRequest) -> None:
    text = str(request_)
    assert GpuRequest.parse(text) == request_
    assert GpuRequest.parse(text.upper()) == request_
    assert str(GpuRequest.parse(text)) == text


@given(requests(), st.booleans())
def test_both_forms_of_the_count_mean_the_same(request_: GpuRequest, upper: bool) -> None:
    memory = f"-{request_.memory_gb}gb" if request_.memory_gb else ""
    socket = f".{request_.socket}" if request_.socket else ""
    for count in (f":{request_.count}", f".{request_.count}x"):
        text = f"{request_.kind}{memory}{socket}{count}"
        assert GpuRequest.parse(text.upper() if upper else text) == request_


@given(st.text(alphabet="abhlmrtx0148-.:gbsxmpcie ", max_size=20) | st.text(max_size=20))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    problem = ""
    try:
        text = str(GpuRequest.parse(text))
    except SpecError as error:
        problem = str(error)
    assert len(problem) < 400
    assert problem or str(GpuRequest.parse(text)) == text


@given(requests().filter(lambda request_: request_.count <= 16))
def test_an_advice_can_be_followed(request_: GpuRequest) -> None:
    with pytest.raises(SpecError) as caught:
        GpuRequest.parse(f"nvidia {request_}")
    advice = re.search(r"did you mean '([^']+)'", str(caught.value))
    assert advice
    assert GpuRequest.parse(advice[1]) == request_
