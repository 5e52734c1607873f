"""What was found, as JSON and as the table of docs/reliability.md."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.attack.cases import CUTS, SURVIVED
from tests.attack.peers import PEERS
from tests.attack.playing import Finding

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- findings -->", "<!-- end of findings -->"
HEADINGS = (
    "what was wrong",
    "up to 20 s",
    "longer",
    "cases in which something did not hold",
    "SkyPilot",
    "dstack",
    "torchrun",
)
WORDS = {
    **CUTS,
    "disk": "a node's disk full",
    "client-disk": "the client's disk full",
    "clock": "a clock moved, of a node or of the client",
    "sshd": "sshd of a host answers nonsense, without end, or not",
    "squatter": "another user of a host holds our names",
    "kept": "a host lies about a result that it keeps",
    "hostile": "a node sends control sequences, pickles, or without end",
}


@dataclass(frozen=True)
class Run:
    """One run of the attack."""

    seed: int
    kind: str
    jobs: int
    seconds: float
    findings: Sequence[Finding]
    simulated: int = 0

    @property
    def wrong(self) -> list[Finding]:
        """Cases in which something did not hold."""
        return [each for each in self.findings if each.wrong]

    def repeat(self, finding: Finding) -> str:
        """The command that plays one case again."""
        return f"make attack SEED={finding.seed} CASES=1 KIND={self.kind}"

    def summary(self) -> str:
        """The run in one line."""
        clean = max((each.clean_after for each in self.findings), default=0.0)
        memory = max((each.supervisor_mb for each in self.findings), default=0.0)
        command = max((each.command_mb for each in self.findings), default=0.0)
        told = [each.acknowledged_after for each in self.findings if each.acknowledged_after >= 0]
        loads = [each.load for each in self.findings] or [0.0]
        return (
            f"{len(self.findings)} cases (seeds {self.seed} to {self.seed + len(self.findings) - 1}, kind {self.kind}) "
            f"in {self.seconds / 60:.0f} min, {self.jobs} at a time, "
            f"load average {min(loads):.0f} to {max(loads):.0f}: "
            f"{len(self.wrong)} wrong; clean at the latest {clean:.0f} s after the end; "
            f"the largest supervisor had {memory:.0f} MB"
            + (f", the largest `flow` command {command:.0f} MB" if command else "")
            + (
                f"; {len(told)} cancelled, told after {max(told):.1f} s at the latest"
                if told
                else ""
            )
            + (f"; {self.simulated:,} simulated gangs" if self.simulated else "")
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The table, by the kind of the first fault."""
        rows = []
        for kind, words in WORDS.items():
            those = [each for each in self.findings if each.first == kind]
            if those:
                short = [each for each in those if each.longest <= SURVIVED]
                long = [each for each in those if each.longest > SURVIVED]
                wrong = str(sum(bool(each.wrong) for each in those))
                rows.append((words, _counts(short), _counts(long), wrong, *PEERS[kind]))
        return rows

    def markdown(self) -> str:
        """What is written into the page."""
        lines = [
            f"Run on {datetime.date.today().isoformat()}, {os.cpu_count()} cores. {self.summary()}.",
            "",
        ]
        table = [HEADINGS, ("---",) * len(HEADINGS), *self.rows()]
        lines += [f"| {' | '.join(row)} |" for row in table]
        if self.wrong:
            lines += ["", "What did not hold:", ""]
            lines += [
                f"- `{self.repeat(each)}` ({each.case}): {'; '.join(each.wrong)}"
                for each in self.wrong
            ]
        return "\n".join(lines)

    def write(self) -> None:
        """Puts it into the page, in place of what was there."""
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{self.markdown()}\n{END}{rest.partition(END)[2]}")

    def save(self, path: Path) -> None:
        """Everything, as JSON."""
        body = {
            "seed": self.seed,
            "kind": self.kind,
            "jobs": self.jobs,
            "seconds": self.seconds,
            "simulated": self.simulated,
            "findings": [each.to_json() for each in self.findings],
        }
        path.write_text(json.dumps(body, indent=1))


def line(finding: Finding) -> str:
    """One case in one line."""
    end = f"{finding.state} ({finding.attempt})"
    return (
        f"{'WRONG' if finding.wrong else 'held '} {finding.seed} [{finding.seconds:.0f} s] "
        f"{finding.case} -> {end}{': ' if finding.reason else ''}{finding.reason}"
    )


def _counts(findings: Sequence[Finding]) -> str:
    """How they ended, in words."""
    if not findings:
        return "none"
    on = sum(each.state == "completed" and each.attempt == 1 for each in findings)
    cancelled = sum(each.state == "cancelled" for each in findings)
    others = len(findings) - on - cancelled
    ends = [f"{on} went on"]
    ends += [f"{others} ended or tried again, the node named"] if others else []
    ends += [f"{cancelled} cancelled"] if cancelled else []
    return f"{len(findings)}: {', '.join(ends)}"
