"""A method of another package, without negatives, temperature or loss, through every command.

The package is VICReg (Bardes et al., ICLR 2022) in about thirty lines, written here into a folder
with the metadata of an installed package. Nothing in `src/` knows of it.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file

from macl.runs import Run
from tiny import Done, assert_same, environment, python

VICREG = '''
"""VICReg: variance, invariance and covariance of two views' embeddings."""

from typing import Literal

import torch.nn.functional as F

from macl.methods import Method, Step
from macl.recipes.methods import HeadConfig, MethodSection


class VICRegConfig(MethodSection):
    """Its recipe section."""

    target = "vicreg:VICReg"
    needs_loss = False
    name: Literal["vicreg"]
    projector: HeadConfig = HeadConfig(widths=("same", 32))


class VICReg(Method):
    """25 (invariance + variance) + covariance."""

    def encode(self, *views):
        return self.project_together(*views)

    def step(self, *embeddings, groups=None, indices=None):
        invariance = F.mse_loss(*embeddings)
        variance = sum(F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() for z in embeddings) / 2
        covariance = sum(map(off_diagonal, embeddings))
        loss = 25 * (invariance + variance) + covariance
        metrics = {"invariance": invariance, "variance": variance, "covariance": covariance}
        return Step(loss, {name: value.detach() for name, value in metrics.items()})


def off_diagonal(z):
    z = z - z.mean(0)
    covariance = z.T @ z / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
'''

TINY = (
    "method=vicreg", "loss=null", "epochs=2", "data.limit=96", "batch_size=32", "save_every=2",
    "encoder.width=null", "encoder.name=fragile:resnet", "encoder.allow_import=true",
    "evaluation.linear.epochs=2", "monitor_every=1",
)  # fmt: skip
"""Two epochs of three steps, with an encoder that can send its process a signal."""
COLUMNS = ["step", "epoch", "loss", "invariance", "variance", "covariance", "effective_rank",
           "alpha_req", "lr", "monitor"]  # fmt: skip

pytestmark = pytest.mark.slow


class Session(NamedTuple):
    """What the commands made, and how each ended."""

    folder: Path
    done: dict[str, Done]

    def printed(self, name: str) -> str:
        """What a command printed; it has to have ended well."""
        done = self.done[name]
        assert done.code == 0, done.stderr
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    @property
    def run(self) -> Run:
        return Run(self.folder / "whole")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Every command, one after the other, where the package is installed."""
    folder = tmp_path_factory.mktemp("proof")
    site = folder / "site"
    metadata = site / "vicreg-0.1.dist-info"
    metadata.mkdir(parents=True)
    (site / "vicreg.py").write_text(VICREG)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vicreg\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[macl.methods]\nvicreg = vicreg:VICRegConfig\n")
    whole, cut = folder / "whole", folder / "cut"
    trained = ["train", "digits", *TINY, "--out"]
    varied = ["--vary", "method.projector.widths=[same,16],[same,32]", "--seeds", "1"]
    commands = {
        "train": [*trained, whole],
        "interrupt": [*trained, cut],
        "resume": ["train", cut, "--resume"],
        "evaluate": ["evaluate", whole],
        "diagnose": ["diagnose", whole, "--items", "64"],
        "report": ["report", whole, "-o", folder / "report.html"],
        "compare": ["compare", "digits", *TINY, "epochs=1", *varied, "--out", folder / "both"],
    }
    signals = {"interrupt": {"FRAGILE_AT": "4", "FRAGILE_SIGNAL": "2"}}
    given = [
        {"arguments": [*map(str, arguments)], "environment": signals.get(name, {})}
        for name, arguments in commands.items()
    ]
    paths = os.pathsep.join([str(site), environment()["PYTHONPATH"]])
    more = {"PYTHONPATH": paths, "MACL_ALLOW_IMPORTS": "1"}
    ended = python("macl_forks.py", input=json.dumps(given), environment=more)
    assert ended.returncode == 0, ended.stderr
    results = [Done(**result) for result in json.loads(ended.stdout)]
    return Session(folder, dict(zip(commands, results, strict=True)))


def test_it_trains_and_its_metrics_are_the_columns(session: Session) -> None:
    assert "covariance" in session.printed("train")
    with session.run.metrics_file.open(newline="") as file:
        assert next(csv.reader(file)) == COLUMNS
    rows = session.run.metrics()
    assert [row["step"] for row in rows] == [3, 6]
    for row in rows:
        parts = 25 * (row["invariance"] + row["variance"]) + row["covariance"]
        assert row["loss"] == pytest.approx(parts, rel=1e-4)


def test_it_resumes_to_the_same_end(session: Session) -> None:
    assert session.done["interrupt"].code == 130, session.done["interrupt"].stderr
    session.printed("resume")
    cut = Run(session.folder / "cut")
    assert cut.metrics_file.read_bytes() == session.run.metrics_file.read_bytes()
    one, two = (load_file(run.folder / "encoder.safetensors") for run in (cut, session.run))
    assert_same(one, two)


def test_it_is_evaluated(session: Session) -> None:
    session.printed("evaluate")
    assert {score["protocol"] for score in session.run.results()["scores"]} >= {"knn", "linear"}


def test_its_diagnosis_is_of_geometry_alone(session: Session) -> None:
    assert "contrasts nothing" in session.printed("diagnose")
    findings = json.loads((session.run.folder / "diagnosis.json").read_text())["findings"]
    assert {finding["name"] for finding in findings} == {"collapse", "uniformity"}


def test_it_is_reported(session: Session) -> None:
    session.printed("report")
    assert "covariance" in (session.folder / "report.html").read_text()


def test_its_settings_are_compared_by_scores_and_by_its_own_metrics(session: Session) -> None:
    session.printed("compare")
    folder = session.folder / "both"
    assert len(list((folder / "runs").iterdir())) == 2
    table = (folder / "table.md").read_text()
    assert "knn top1" in table
    assert "covariance" in table
