"""Names and manifests of sets: what is complete, what is taken, what is kept."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlite.node.checkpoints.manifest import (
    BadManifest,
    CheckpointManifest,
    File,
    SetName,
    agree,
    claim_name,
    generation_of,
    is_complete,
    object_name,
    superfluous,
    whole_sets,
    writers,
)

SHA = "ab" * 32


def file(path: str, size: int = 3, sha256: str = SHA) -> File:
    return File(
        path, size, 1_700_000_000_000_000_123, 0o644, sha256, object_name("files", path, sha256)
    )


def name(
    number: int, node: int = 0, nodes: int = 1, digest: str = "0" * 16, generation: int = 1
) -> SetName:
    return SetName(generation, "t1.1", number, node, nodes, digest)


class TestNames:
    @given(
        st.integers(0, 10**7),
        st.from_regex(r"t[a-z0-9]{10}\.[0-9]{1,3}", fullmatch=True),
        st.integers(0, 10**7),
        st.integers(0, 9999),
        st.integers(0, 2**64 - 1),
    )
    def test_they_are_read_as_they_were_made(
        self, generation: int, writer: str, number: int, node: int, digest: int
    ) -> None:
        made = SetName(generation, writer, number, node, node + 1, f"{digest:016x}")
        assert SetName.parse(made.path) == made

    @pytest.mark.parametrize(
        "path",
        ["", "sets/x", "sets/000001.t1.1/claim", "sets/000001.t1.1/000001/0001of0001.0000000000000000.json",
         "sets/000001.t1.1/000001/0000of0001.0000000000000000.json.part", "files/000001.t1.1/a"],
    )  # fmt: skip
    def test_nothing_else_is_one(self, path: str) -> None:
        assert SetName.parse(path) is None

    @given(st.text(min_size=1).filter(lambda text: "/" not in text and "\0" not in text))
    @example("a" * 150 + "." + "\U0001f525" * 16)
    def test_objects_have_plain_names_of_a_bearable_length(self, part: str) -> None:
        if part in (".", ".."):
            return
        made = object_name("files/node0001", f"dir/{part}", SHA)
        assert made.isascii()
        assert made.isprintable()
        assert " " not in made
        assert all(len(each) < 200 for each in made.split("/"))
        assert made.count("/") == 3

    @given(
        st.lists(st.sampled_from(["a.pt", "a", "dir/a.pt", "a b.pt", "ä.pt", "%61.pt"]), min_size=2)
    )
    def test_different_files_are_different_objects(self, paths: list[str]) -> None:
        made = {path: object_name("files", path, SHA) for path in paths}
        assert len(set(made.values())) == len(made)

    def test_what_kind_of_file_it_is_stays_visible(self) -> None:
        assert (
            object_name("files", "step 5/model.pt", SHA)
            == "files/step%205/model.abababababababab.pt"
        )
        assert object_name("files", "LATEST", SHA) == "files/LATEST.abababababababab"


PATHS = st.lists(
    st.text(min_size=1, max_size=8).filter(lambda t: "/" not in t and "\0" not in t and t not in (".", "..")),
    min_size=1, max_size=3,
).map("/".join)  # fmt: skip


class TestManifests:
    @given(st.dictionaries(PATHS, st.integers(0, 10**12), max_size=5), PATHS)
    def test_they_come_back_as_they_were(self, files: dict[str, int], empty: str) -> None:
        made = CheckpointManifest(
            0,
            1,
            tuple(file(*each) for each in files.items()),
            {"a": "b"},
            (empty,),
            ("c",),
            {"x": 1},
        )
        try:
            text = made.to_json().encode()
        except UnicodeEncodeError:
            return
        assert CheckpointManifest.from_json(text) == made

    @pytest.mark.parametrize(
        "path", ["../x", "/etc/passwd", "a/../../b", "a//b", "", ".", "a/./b", "a\0b"]
    )
    def test_nothing_in_them_leads_out_of_the_directory(self, path: str) -> None:
        whole = json.loads(CheckpointManifest(0, 1, (file("a"),), {"l": "a"}).to_json())
        for change in (
            {"files": [{**whole["files"][0], "path": path}]},
            {"files": [{**whole["files"][0], "object": f"files/{path}/x"}]},
            {"links": {path: "a"}},
            {"directories": [path]},
        ):
            with pytest.raises(BadManifest):
                CheckpointManifest.from_json(json.dumps({**whole, **change}))

    @pytest.mark.parametrize(
        ("path", "target", "inside"),
        [("a", "b", True), ("a", "d/b", True), ("d/a", "../b", True), ("a", "../b", False), ("a", "/etc", False),
         ("d/a", "../../b", False), ("d/a", "x/../../../b", False), ("a", "", False), ("a", "..", False)],
    )  # fmt: skip
    def test_links_stay_inside(self, path: str, target: str, inside: bool) -> None:
        text = json.dumps(
            {**json.loads(CheckpointManifest(0, 1).to_json()), "links": {path: target}}
        )
        if inside:
            assert CheckpointManifest.from_json(text).links == {path: target}
        else:
            with pytest.raises(BadManifest):
                CheckpointManifest.from_json(text)

    @pytest.mark.parametrize(
        ("path", "target", "made"),
        [
            ("a", "d/../b", "b"),
            ("x/a", "../d/../b", "../b"),
            ("x/a", "d/../..", ".."),
            ("x/y/a", "../d/../../b", "../../b"),
        ],
    )
    def test_no_link_leads_out_through_another(self, path: str, target: str, made: str) -> None:
        """Earlier sets have such links: if `d` is a link to `.`, `d/../b` is not where its letters say."""
        text = json.dumps(
            {**json.loads(CheckpointManifest(0, 1).to_json()), "links": {"d": ".", path: target}}
        )
        assert CheckpointManifest.from_json(text).links == {"d": ".", path: made}

    @pytest.mark.parametrize(
        "text", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b'{"format": 1}', b"[" * 200_000]
    )
    def test_garbage_is_none(self, text: bytes) -> None:
        with pytest.raises(BadManifest):
            CheckpointManifest.from_json(text)

    @pytest.mark.parametrize("change", [{"mtime_ns": 2**63}, {"path": "\ud800"}])
    def test_what_no_file_can_have_is_no_file(self, change: dict[str, object]) -> None:
        whole = json.loads(CheckpointManifest(0, 1, (file("a"),)).to_json())
        text = json.dumps({**whole, "files": [{**whole["files"][0], **change}]})
        with pytest.raises(BadManifest):
            CheckpointManifest.from_json(text)
        with pytest.raises(BadManifest):
            CheckpointManifest.from_json(json.dumps({**whole, "links": {"l": "\ud800"}}))

    def test_the_digest_is_about_content_alone(self) -> None:
        one = CheckpointManifest(0, 1, (file("a"), file("b")), facts={"time": 1})
        other = CheckpointManifest(
            0, 1, (file("b"), file("a")), facts={"time": 2}, unfinished=("c",)
        )
        assert one.digest == other.digest
        assert one.digest != CheckpointManifest(0, 1, (file("a"),)).digest
        assert (
            one.digest != CheckpointManifest(0, 1, (file("a"), file("b", sha256="cd" * 32))).digest
        )


class TestCompleteness:
    def test_a_set_needs_every_node(self) -> None:
        names = [name(1, node, 3) for node in range(3)] + [name(2, node, 3) for node in (0, 2)]
        assert [each.key[2] for each in whole_sets(names)] == [1]

    def test_the_newest_comes_first_whatever_the_generation_is_called(self) -> None:
        names = [name(7), name(1, generation=2), name(9)]
        assert [(each.key[0], each.key[2]) for each in whole_sets(names)] == [
            (2, 1),
            (1, 9),
            (1, 7),
        ]

    def test_a_set_needs_every_file_with_its_size(self) -> None:
        whole = [CheckpointManifest(0, 1, (file("a", 3), file("b", 4)))]
        objects = {each.object: each.size for each in whole[0].files}
        assert is_complete(whole, objects)
        for missing in objects:
            assert not is_complete(whole, {n: s for n, s in objects.items() if n != missing})
            assert not is_complete(whole, {**objects, missing: 2})

    def test_nodes_that_have_other_directories_do_not_agree(self) -> None:
        first, second = (
            CheckpointManifest(0, 2, (file("s5/a"), file("s9/a"))),
            CheckpointManifest(1, 2, (file("s5/b"),)),
        )
        assert not agree([first, second])
        assert agree([first, CheckpointManifest(1, 2, (file("s9/c"), file("s5/b")))])


class TestGenerations:
    def test_each_writer_has_one_and_all_its_nodes_the_same(self) -> None:
        known = writers([claim_name(4, "told.3"), "sets/000002.t1.1/000001/x", "files/a"])
        assert known == {(4, "told.3"), (2, "t1.1")}
        assert generation_of("tnew.1", known) == 5
        assert generation_of("tnew.1", {*known, (5, "tnew.1")}) == 5
        assert generation_of("tnew.1", []) == 1


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 3)), unique_by=lambda each: each[0]),
    st.integers(1, 4), st.integers(1, 3), st.data(),
)  # fmt: skip
def test_what_is_kept(
    sets: list[tuple[int, int]], keep: int, nodes: int, data: st.DataObject
) -> None:
    """The newest `keep` different complete sets stay, and the newest complete one always."""
    names = [
        name(number, node, nodes, f"{content:016x}")
        for (number, content), node in product(sets, range(nodes))
        if data.draw(st.integers(0, 9)) or node
    ]
    before = whole_sets(names)
    gone = {each for node in range(nodes) for each in superfluous(names, node, keep)}
    after = whole_sets([each for each in names if each not in gone])
    assert len(after) == min(keep, len({each.content for each in before}))
    assert [each.key for each in after] == [each.key for each in before if each in after]
    if before:
        assert after[0] == before[0]
        assert len({each.content for each in after}) == len(after)
    assert len({each.number for each in names if each not in gone}) <= 2 * keep
