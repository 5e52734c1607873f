"""Arrays and tensors in the plain form: values, types, layout and sharing; no objects, no reading beyond the data."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowlite.node.serialization import safe
from flowlite.node.serialization.safe_base import OUT_OF_LINE

np = pytest.importorskip("numpy")

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(endianness="?"),
    hnp.datetime64_dtypes(),
    hnp.timedelta64_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
)
QUICK = settings(max_examples=150, deadline=None, derandomize=True)
TENSOR_DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex32",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]
# By torch, which only the process that runs these tests imports, and no other that merely collects them.
DIFFERENT_TENSORS: dict[str, Callable[[Any], Any]] = {
    "a parameter": lambda torch: torch.nn.Parameter(torch.zeros(2)),
    "sparse": lambda torch: torch.zeros(2).to_sparse(),
    "nested": lambda torch: torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]),
    "without memory": lambda torch: torch.zeros(2, device="meta"),
    "conjugated": lambda torch: torch.zeros(2, dtype=torch.complex64).conj(),
}
ODD_TENSORS: dict[str, Callable[[Any], Any]] = {
    "empty": lambda torch: torch.empty(0),
    "empty rows": lambda torch: torch.empty(0, 3),
    "a number": lambda torch: torch.tensor(5),
    "with a gradient": lambda torch: torch.zeros(2, requires_grad=True),
    "expanded": lambda torch: torch.ones(3).expand(4, 3),
    "strided": lambda torch: torch.arange(12.0).reshape(3, 4)[1:, ::2],
    "channels last": lambda torch: torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "computed": lambda torch: torch.ones(2, requires_grad=True) * 2,
}


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def round_trip(value: Any) -> Any:
    encoded = safe.encode(value)
    return safe.decode(encoded.structure, [memoryview(bytearray(part)) for part in encoded.buffers])


@QUICK
@given(
    hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)),
    st.randoms(use_true_random=False),
)
def test_arrays_come_back(array: Any, chance: random.Random) -> None:
    axes = list(range(array.ndim))
    chance.shuffle(axes)
    for view in (array, array.transpose(axes), array[..., ::2] if array.ndim else array):
        found = round_trip(view)
        assert found.dtype == view.dtype
        assert found.shape == view.shape
        assert found.tobytes() == view.tobytes()


def test_layout_is_kept_where_the_array_is_in_one_piece() -> None:
    array = np.arange(60.0).reshape(3, 4, 5).transpose(2, 0, 1)
    assert round_trip(array).strides == array.strides
    fortran = np.asfortranarray(np.ones((30, 40)))
    assert round_trip(fortran).flags.f_contiguous


def test_large_arrays_are_views_on_both_sides() -> None:
    array = np.arange(OUT_OF_LINE, dtype=np.int64)
    encoded = safe.encode([array])
    assert np.shares_memory(np.frombuffer(encoded.buffers[0], np.int64), array)
    memory = bytearray(encoded.buffers[0])
    (found,) = safe.decode(encoded.structure, [memoryview(memory)])
    found[0] = 77
    assert memory[0] == 77


def test_read_only_arrays_stay_read_only_and_others_writable() -> None:
    frozen = np.zeros(10_000)
    frozen.flags.writeable = False
    encoded = safe.encode([frozen, np.zeros(10_000), np.zeros(3)])
    found = safe.decode(encoded.structure, [memoryview(bytes(part)) for part in encoded.buffers])
    assert [array.flags.writeable for array in found] == [False, True, True]


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.float32("nan"),
        np.int8(-3),
        np.uint64(2**64 - 1),
        np.bool_(True),
        np.complex64(1j),
        np.datetime64("2020-01-01", "D"),
        np.timedelta64(5, "ms"),
        np.longdouble(1) / 3,
    ],
    ids=repr,
)
def test_numpy_numbers_keep_their_types(value: Any) -> None:
    found = round_trip({"x": [value]})["x"][0]
    assert type(found) is type(value)
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.array([None, 1]),
        np.zeros(2, [("a", "i4"), ("b", "O")]),
        np.zeros(2, [("a", "i4")]),
        np.ma.masked_array([1], [True]),
        np.zeros(2).view(np.recarray),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_different_is_refused(value: Any) -> None:
    with pytest.raises(safe.NotPlain):
        safe.encode([value])


@pytest.mark.parametrize("kind", DIFFERENT_TENSORS)
def test_a_tensor_that_would_come_back_different_is_refused(torch: Any, kind: str) -> None:
    with pytest.raises(safe.NotPlain):
        safe.encode([DIFFERENT_TENSORS[kind](torch)])


@pytest.mark.parametrize("name", TENSOR_DTYPES)
def test_tensors_come_back(torch: Any, name: str) -> None:
    dtype = getattr(torch, name)
    raw = torch.arange(240, dtype=torch.uint8)
    if dtype == torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype)
    tensor = tensor.reshape(3, -1).t()
    found = round_trip(tensor)
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    assert found.stride() == tensor.stride()
    assert bytes(found.untyped_storage()) == bytes(tensor.untyped_storage())


@pytest.mark.parametrize("kind", ODD_TENSORS)
def test_odd_tensors_come_back(torch: Any, kind: str) -> None:
    tensor = ODD_TENSORS[kind](torch)
    found = round_trip(tensor)
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()
    assert found.requires_grad == tensor.requires_grad


def test_tensors_that_share_memory_still_share_it(torch: Any) -> None:
    base = torch.arange(1000.0)
    found = round_trip(
        {"all": base, "part": base[10:20], "again": base, "turned": base.view(10, 100).t()}
    )
    found["all"][10] = -1.0
    assert found["part"][0] == -1.0
    assert found["turned"][10, 0] == -1.0
    assert found["again"] is found["all"]


def test_a_small_view_takes_only_its_part_of_the_memory(torch: Any) -> None:
    losses = torch.arange(1_000_000.0)
    encoded = safe.encode([losses[-1], losses[-3:-1]])
    assert sum(map(len, encoded.buffers)) < 200
    last, before = round_trip([losses[-1], losses[-3:-1]])
    assert last == 999_999
    assert before.tolist() == [999_997, 999_998]


def test_damaged_arrays_are_a_clean_error_or_stay_within_their_memory(torch: Any) -> None:
    chance = random.Random(5)
    base = torch.arange(4000, dtype=torch.int16)
    value = [
        np.arange(2000),
        base,
        base[5:9],
        np.zeros((0, 3)),
        np.datetime64("2020"),
        torch.empty(0),
    ]
    encoded = safe.encode(value)
    buffers = [memoryview(bytearray(part)) for part in encoded.buffers]
    for _ in range(10_000):
        damaged = bytearray(encoded.structure)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice(
                (chance.randrange(256), 0, 1, 0x7F)
            )
        try:
            found = safe.decode(bytes(damaged), buffers)
        except safe.PlainError:
            continue
        for item in found if isinstance(found, list) else ():
            if isinstance(item, torch.Tensor) and item.numel():
                ends = item.storage_offset() + sum(
                    (n - 1) * s for n, s in zip(item.shape, item.stride(), strict=True)
                )
                memory = item.untyped_storage().nbytes()
                assert memory <= max(map(len, buffers))
                assert ends * item.element_size() < memory


def test_a_tensor_beyond_its_memory_is_refused(torch: Any) -> None:
    encoded = safe.encode(torch.zeros(OUT_OF_LINE, dtype=torch.uint8))
    for buffer in (b"", bytes(OUT_OF_LINE - 1)):
        with pytest.raises(safe.PlainError, match="beyond"):
            safe.decode(encoded.structure, [memoryview(bytearray(buffer))])


@pytest.mark.parametrize("name", ["int16", "float32", "float64", "complex128"])
def test_no_tensor_reaches_beyond_its_memory_whatever_its_elements_take(
    torch: Any, name: str
) -> None:
    """torch would enlarge the memory, with whatever lies there, or read before it."""
    encoded = safe.encode(torch.zeros(OUT_OF_LINE, dtype=getattr(torch, name)))
    (data,) = encoded.buffers
    whole = bytes(data)
    size = len(whole) // OUT_OF_LINE
    safe.decode(encoded.structure, [memoryview(bytearray(whole))])
    for left in (len(whole) - 1, len(whole) - size, size):
        with pytest.raises(safe.PlainError, match="beyond"):
            safe.decode(encoded.structure, [memoryview(bytearray(whole[:left]))])
    assert encoded.structure.count(b'"offset":0') == 1
    for offset in (b"-1", b"-4096", b"1"):
        moved = encoded.structure.replace(b'"offset":0', b'"offset":' + offset)
        with pytest.raises(safe.PlainError, match="beyond"):
            safe.decode(moved, [memoryview(bytearray(whole))])


def test_objects_are_never_made_from_an_array() -> None:
    encoded = safe.encode(np.zeros(1, "<i8"))
    for name in (b"|O8", b"<O8", b"|V8", b"O  "):
        assert encoded.structure.count(b"<i8") == 1
        with pytest.raises(safe.PlainError, match="no type of array"):
            safe.decode(encoded.structure.replace(b"<i8", name), encoded.buffers)


@pytest.mark.parametrize(
    ("package", "make"),
    [
        ("numpy", lambda _: np.zeros(3)),
        ("numpy", lambda _: np.float32(1)),
        ("torch", lambda torch: torch.zeros(3)),
    ],
)
def test_a_missing_package_is_named(
    torch: Any, package: str, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = safe.encode(make(torch))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        safe.PlainError, match=f"{package} is not installed here: pip install {package}"
    ):
        safe.decode(encoded.structure, encoded.buffers)


@pytest.mark.gpu
def test_tensors_on_a_device_come_back_on_the_cpu(torch: Any) -> None:
    from flowlite.node.serialization import pickling

    base = torch.arange(1000.0, device="cuda")
    value = [base[10:20], base.view(10, 100).t(), torch.empty(0, device="cuda")]
    pickled = pickling.dumps(value)
    assert pickled.devices == {"cuda:0"}
    for found in (round_trip(value), pickling.loads(pickled.joined(), pickled.buffers)):
        assert [tensor.device.type for tensor in found] == ["cpu"] * 3
        assert torch.equal(found[0], torch.arange(10.0, 20.0))
        found[0][0] = -1
        assert found[1][10, 0] == -1
