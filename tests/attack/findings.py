"""What was found, as JSON and as the table of docs/reliability.md."""

from __future__ import annotations

import datetime
import json
import os
import re
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
    "cases",
    "first attempt went on",
    "failed or tried again, the node named",
    "cancelled",
    "wrong",
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
        return (
            f"{len(self.findings)} cases (seeds {self.seed} to {self.seed + len(self.findings) - 1}, kind {self.kind}) "
            f"in {self.seconds / 60:.0f} min, {self.jobs} at a time, load average {os.getloadavg()[0]:.0f}: "
            f"{len(self.wrong)} wrong; clean at the latest {clean:.0f} s after the end; "
            f"the largest supervisor had {memory:.0f} MB"
            + (f"; {self.simulated:,} simulated gangs" if self.simulated else "")
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The table, by the kind of the first fault."""
        rows = []
        for kind, words in WORDS.items():
            for short in (True, False) if kind in CUTS else (None,):
                those = [each for each in self.findings if _is(each, kind, short)]
                if those:
                    name = words if short is None else f"{words}, {_length(short)}"
                    rows.append((name, *_counts(those), *PEERS.get(kind, ("not known",) * 3)))
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


def _is(finding: Finding, kind: str, short: bool | None) -> bool:
    first = finding.case.partition(": ")[2].split()[0]
    return first == kind and short in (None, _is_short(finding))


def _is_short(finding: Finding) -> bool:
    lengths = [
        int(seconds) for seconds in re.findall(r"\b(\d+) s\b", finding.case.split(", ret")[0])
    ]
    return max(lengths) <= SURVIVED


def _length(short: bool) -> str:
    return f"up to {SURVIVED:.0f} s" if short else f"longer than {SURVIVED:.0f} s"


def _counts(findings: Sequence[Finding]) -> tuple[str, ...]:
    on = [each for each in findings if each.state == "completed" and each.attempt == 1]
    cancelled = [each for each in findings if each.state == "cancelled"]
    wrong = [each for each in findings if each.wrong]
    others = len(findings) - len(on) - len(cancelled)
    return tuple(str(n) for n in (len(findings), len(on), others, len(cancelled), len(wrong)))
