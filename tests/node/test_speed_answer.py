"""What is read of the program that multiplies matrices, beside what its Python prints."""

from __future__ import annotations

from flowlite.node.preflight.readiness import answer_of_speed


def test_lines_before_the_answer_are_no_fault_of_the_machine() -> None:
    answer = b'{"unit": "GFLOPS", "speeds": {"CPU": 40.0}}\n'
    found = {"unit": "GFLOPS", "speeds": {"CPU": 40.0}}
    assert answer_of_speed(answer, 0) == found
    assert answer_of_speed(b"module load: cuda/12\nwelcome\n" + answer, 0) == found


def test_without_an_answer_the_exit_code_is_told() -> None:
    for said in (b"", b"\n", b"killed\n", b"1\n", b"null\n"):
        assert answer_of_speed(said, -9) == {
            "error": "the program that multiplies matrices ended with -9"
        }
