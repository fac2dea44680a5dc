"""Known bugs, put into a copy of src/ one after the other; the named tests must fail for each.

    python tests/seeded_bugs.py [--only WORD] [--jobs 2] [--trust] [--list]

Shows that the tests find what they are for. tests/test_seeded_bugs.py checks in `make test-slow`
that each bug can still be put in; add one here when a bug was found that no test had caught.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "macl"
TESTS = ROOT / "tests"


class Bug(NamedTuple):
    """`old`, found once in a file of src/macl, becomes `new`; `tests` are paths from tests/."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    slow: bool = False
    """Whether only tests of `make test-slow` find it."""


BUGS = [
    # --- objectives and pairs
    Bug(
        "DCL has the slope of InfoNCE",
        "losses/objectives.py",
        "PairFunction(torch.clone)",
        "PairFunction(torch.clone, torch.sigmoid)",
        ("losses/test_losses_identities.py",),
    ),
    Bug(
        "dual temperature weighs easy anchors most",
        "losses/objectives.py",
        "torch.sigmoid(x_beta.detach())",
        "torch.sigmoid(-x_beta.detach())",
        ("losses/test_losses_identities.py",),
    ),
    Bug(
        "HCL multiplies by the share of true negatives",
        "losses/objectives.py",
        "debiased = debiased - math.log1p(-tau_plus)",
        "debiased = debiased + math.log1p(-tau_plus)",
        ("losses/test_losses_reference.py",),
    ),
    Bug(
        "a guide excludes what is unlike",
        "losses/ops/exclusions.py",
        "return similarity > self.threshold[tile.rows, None]",
        "return similarity < self.threshold[tile.rows, None]",
        ("losses/test_composition.py",),
    ),
    Bug(
        "a listed positive of another tile excludes this one's corner",
        "losses/ops/exclusions.py",
        "        entries[0, 0] = corner\n",
        "",
        (
            "losses/test_composition.py",
            "losses/test_operator.py",
        ),
    ),
    Bug(
        "sentences that share their positive alone are negatives",
        "modalities/text/data.py",
        "holder.setdefault(t.strip(), i)) for c in columns for",
        "holder.setdefault(t.strip(), i)) for c in columns[:1] for",
        ("modalities/text/test_text_data.py",),
    ),
    Bug(
        "a relative margin widens where the positive is unlike",
        "core/mining.py",
        "positive.abs() * margin if",
        "positive * margin if",
        ("test_mining.py::test_negatives_are_those_of_a_loop",),
    ),
    Bug(
        "mining skips the first rank that is asked for",
        "core/mining.py",
        "return scores[:, first - 1 :], columns[:, first - 1 :]",
        "return scores[:, first:], columns[:, first:]",
        ("test_mining.py::test_negatives_are_those_of_a_loop",),
    ),
    Bug(
        "the new keys of a large batch are its oldest",
        "methods/queue.py",
        "= rows[-size:]",
        "= rows[:size]",
        ("methods/test_methods_queue.py",),
    ),
    Bug(
        "shuffled keys belong to other queries",
        "methods/moco.py",
        "return keys[order.argsort()]",
        "return keys[order]",
        ("methods/test_methods_moco.py",),
    ),
    Bug(
        "the keys of a batch come one step late",
        "methods/moco.py",
        "        self.queue.flush()\n        branches",
        "        branches",
        ("methods/test_methods_moco.py",),
    ),
    # --- gradients
    Bug(
        "the held matrix pulls in one direction",
        "losses/ops/dense.py",
        'e *= first if direction == "rows" else first + weight[-m:]',
        "e *= first",
        ("losses/test_losses_identities.py",),
    ),
    Bug(
        "columns of the held matrix without their weights",
        "losses/ops/dense.py",
        "w.addcmul_(by_column, weight[n:])",
        "w.add_(by_column)",
        ("losses/test_implementations.py::test_both_directions",),
    ),
    Bug(
        "tiles above the diagonal pull their rows alone",
        "losses/ops/tiled.py",
        "            d_rows[j].addmm_(w.T, rows[i])\n",
        "            pass\n",
        ("losses/test_tiles.py",),
    ),
    Bug(
        "sums of earlier tiles keep their former maximum",
        "losses/ops/tiled.py",
        "                total[place] *= scale\n",
        "                pass\n",
        ("losses/test_tiles.py",),
    ),
    Bug(
        "a pair of two views counts twice for the temperature",
        "losses/ops/tiled.py",
        "(-2.0 if mirror else -1.0)",
        "-1.0",
        ("losses/test_tiles.py",),
    ),
    Bug(
        "half the slope of artanh",
        "losses/ops/maps.py",
        "reciprocal_().mul_(2 * self.factor)",
        "reciprocal_().mul_(self.factor)",
        ("losses/test_operator.py",),
    ),
    # --- temperatures
    Bug(
        "the alignment lowers the temperature",
        "losses/temperature.py",
        "alignment.detach() * slope +",
        "alignment.detach() * -slope +",
        ("losses/test_losses_temperature.py",),
    ),
    Bug(
        "a learned temperature has no upper bound",
        "losses/temperature.py",
        "self.log_temperature.clamp_(math.log(self.tau_min), math.log(self.tau_max))",
        "self.log_temperature.clamp_(math.log(self.tau_min))",
        ("losses/test_losses_temperature.py",),
    ),
    Bug(
        "auto: a divergence above its target lowers the temperature",
        "losses/auto.py",
        "(kl / wanted.clamp(min=1e-6)).log()",
        "(wanted.clamp(min=1e-6) / kl).log()",
        ("losses/test_auto.py",),
    ),
    Bug(
        "auto: the temperature falls within a cone",
        "losses/auto.py",
        "mean_similarity > self.cone",
        "mean_similarity < self.cone",
        ("losses/test_auto.py",),
    ),
    # --- statistics
    Bug(
        "Holm: one comparison too few",
        "experiments/statistics.py",
        "np.arange(len(p_values), 0, -1)",
        "np.arange(len(p_values) - 1, -1, -1)",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "standard deviation of the population",
        "experiments/statistics.py",
        "array.std(ddof=1)",
        "array.std(ddof=0)",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "one-sided interval",
        "experiments/statistics.py",
        "half = float(stats.t.ppf(1 - LEVEL / 2, degrees)) * error",
        "half = float(stats.t.ppf(1 - LEVEL, degrees)) * error",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "noise within settings counts as spread between them",
        "experiments/statistics.py",
        "spread**2 - float(np.mean(noise or 0.0))",
        "spread**2",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "Holm: adjusted values may fall",
        "experiments/statistics.py",
        "np.maximum.accumulate(scaled)",
        "scaled",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "equivalence by one test of two",
        "experiments/statistics.py",
        "(MARGIN - abs(mean)) / error",
        "(MARGIN - mean) / error",
        ("experiments/test_statistics.py",),
    ),
    Bug(
        "adapt: seeds add no uncertainty",
        "experiments/verdict.py",
        "max(by_item + by_seed, (1 / items) ** 2)",
        "max(by_item, (1 / items) ** 2)",
        ("experiments/test_adapt.py::test_seeds_that_disagree_show_nothing",),
    ),
    Bug(
        "adapt: better at chance level",
        "experiments/verdict.py",
        "if low > 0 and above:",
        "if low > 0:",
        ("experiments/test_adapt.py::test_a_gain_that_only_reaches_chance_is_not_better",),
    ),
    Bug(
        "adapt: any gain is better",
        "experiments/verdict.py",
        "if low > 0 and above:",
        "if mean > 0 and above:",
        ("experiments/test_adapt.py::test_no_difference_has_no_verdict",),
    ),
    # --- distributed
    Bug(
        "gathered rows get the gradient of their own rank alone",
        "distributed.py",
        "dist.reduce_scatter_tensor(own, grad.contiguous(), group=ctx.group)",
        "own.copy_(grad.split(widest)[rank(ctx.group)])",
        ("test_distributed.py",),
    ),
    Bug(
        "padding of short batches is kept",
        "distributed.py",
        "torch.cat([block[:size] for block, size in blocks])",
        "torch.cat([block for block, size in blocks])",
        ("test_distributed.py",),
    ),
    Bug(
        "the global mean is a mean of means",
        "distributed.py",
        "return total[0] / total[1]",
        "return global_sum(values.mean()) / world_size()",
        ("test_distributed.py",),
    ),
    Bug(
        "ranks overlap in a short last batch",
        "core/sharding.py",
        "mine = begin + self.rank * share",
        "mine = begin + self.rank * (self.batch_size // self.world)",
        ("training/test_loader.py",),
    ),
    Bug(
        "positions of this rank's keys exclude other ranks' keys",
        "losses/ops/exclusions.py",
        "        if not own:\n",
        "        if False:\n",
        ("losses/test_ring.py",),
    ),
    Bug(
        "the ring loses the other ranks' gradients",
        "losses/ring.py",
        "own = own.add_(transfer.wait()[0])",
        "transfer.wait()",
        ("losses/test_ring.py",),
    ),
    Bug(
        "every rank of a stream reads the first share",
        "training/stream.py",
        "batch[self.rank * share : (self.rank + 1) * share]",
        "batch[:share]",
        ("training/test_stream.py",),
    ),
    # --- resume
    Bug(
        "an epoch is trained in the same order as the one before",
        "core/sharding.py",
        "mix(self.seed, self.epoch)",
        "mix(self.seed, 0)",
        ("training/test_loader.py::test_the_order_depends_on_seed_and_epoch_alone",),
    ),
    Bug(
        "a resumed epoch starts anew",
        "core/sharding.py",
        'self.start = state["done"]',
        "self.start = 0",
        ("training/test_loader.py",),
    ),
    Bug(
        "a resumed stream reads the samples of its part again",
        "training/stream.py",
        "order[taken:]",
        "order",
        ("training/test_stream.py::test_a_pass_has_every_sample_once_on_one_rank",),
    ),
    Bug(
        "the best score is forgotten on resume",
        "training/callbacks.py",
        'self.best, self.since_best = state_dict["best"], state_dict.get("since_best", 0)',
        "pass",
        ("training/test_callbacks.py",),
    ),
    Bug(
        "checkpoints amid accumulated gradients",
        "training/journal.py",
        "if last or (batch_idx + 1) % trainer.accumulate_grad_batches == 0:",
        "if True:",
        ("training/test_resume.py::test_accumulation_and_a_temperature_by_step",),
    ),
    Bug(
        "a run resumes with another loss",
        "training/resume.py",
        '"loggers", "save_every",',
        '"loggers", "save_every", "loss",',
        ("training/test_longer.py::test_other_changes_are_refused_by_name",),
    ),
    Bug(
        "a longer run keeps the scores of the shorter",
        "training/resume.py",
        'file.replace(run.folder / f"{name}-{length}.json")',
        "pass",
        ("training/test_longer.py::test_a_finished_run_is_trained_on",),
    ),
    Bug(
        "a file is written in place",
        "core/files.py",
        """            write(file)
            file.flush()
""",
        """            path.write_bytes(b"")
            write(file)
            file.flush()
""",
        ("training/test_checkpoints.py",),
    ),
    Bug(
        "checkpoints may run code",
        "core/torch_files.py",
        'torch.load(path, map_location="cpu", weights_only=True)',
        'torch.load(path, map_location="cpu", weights_only=False)',
        ("training/test_checkpoints.py",),
    ),
    Bug(
        "every pass over a stream has one order",
        "training/stream.py",
        "mix(self.seed, turn, number)",
        "mix(self.seed, number)",
        ("training/test_stream.py::test_the_order_depends_on_the_seed_and_the_pass",),
    ),
    Bug(
        "a lock of another machine is taken over",
        "core/locks.py",
        'holder.get("host") not in (None, socket.gethostname())',
        "False",
        ("security/test_locks.py",),
    ),
    Bug(
        "one process locks a folder twice",
        "core/locks.py",
        "if (status.st_dev, status.st_ino) in _held:",
        "if False:",
        ("security/test_locks.py",),
    ),
    # --- optimizers and schedules
    Bug(
        "the trust ratio upside down",
        "optim.py",
        "coefficient * weight_norms / gradient_norms",
        "coefficient * gradient_norms / weight_norms",
        ("training/test_optimizers.py",),
    ),
    Bug(
        "biases decay",
        "optim.py",
        '"params": [], "weight_decay": 0.0,',
        '"params": [], "weight_decay": weight_decay,',
        ("training/test_optimizers.py",),
    ),
    Bug(
        "warm-up begins at zero",
        "optim.py",
        "return (step + 1) / (warmup_steps + 1)",
        "return step / (warmup_steps + 1)",
        ("training/test_schedules.py",),
    ),
    # --- evaluation and search
    Bug(
        "a training item is its own neighbor",
        "core/similarity.py",
        "products[own, own + start] = -torch.inf",
        "products[own, own] = -torch.inf",
        ("test_similarity.py",),
    ),
    Bug(
        "search by products instead of cosines",
        "core/similarity.py",
        "cosines /= keys.norm(dim=1)",
        "cosines /= 1",
        ("test_search.py",),
    ),
    Bug(
        "neighbors vote without weights",
        "probes/knn.py",
        "torch.softmax(cosines / temperature, dim=1)",
        "torch.softmax(cosines * 0, dim=1)",
        ("evaluation/test_knn.py",),
    ),
    Bug(
        "ties count for the query",
        "modalities/image_text/evaluation.py",
        "ahead = ~(similarities < best) & ~is_match",
        "ahead = (similarities > best) & ~is_match",
        ("modalities/image_text/test_retrieval.py",),
    ),
    Bug(
        "embedding in training mode",
        "modalities/embedding.py",
        "    encoder.eval()\n",
        "",
        ("test_embedding.py",),
    ),
    Bug(
        "votes of neighbors depend on the query's length",
        "probes/knn.py",
        "nearest_rows(F.normalize(test, dim=1), keys",
        "nearest_rows(test, keys",
        ("evaluation/test_knn.py",),
    ),
    Bug(
        "vectors of another encoder are searched",
        "runs/index.py",
        'if opened.encoder not in ("", fingerprint(encodes.encoder)):',
        "if False:",
        (
            "test_index.py",
            "test_search.py",
        ),
    ),
    # --- parsing
    Bug(
        "a path is read as YAML",
        "recipes/parsing.py",
        "return Path(text) if text or NONE not in types else None",
        "return load_yaml(text)",
        ("experiments/test_recipe.py",),
    ),
    Bug(
        "numbered files without their leading zeros",
        "modalities/records.py",
        "{number:0{len(numbers[1])}}",
        "{number}",
        ("modalities/test_records.py::test_braces_stand_for_numbered_files",),
    ),
    Bug(
        "names in a .npy list end at any line break",
        "runs/vectors.py",
        'path.with_suffix(NAMES).read_bytes().decode().removesuffix("\\n").split("\\n")',
        "path.with_suffix(NAMES).read_bytes().decode().splitlines()",
        ("test_search.py",),
    ),
    Bug(
        "overrides are applied in the order given",
        "recipes/overrides.py",
        "sorted(layer.items(), key=_rank)",
        "layer.items()",
        ("experiments/test_recipe.py",),
    ),
    Bug(
        "another method forgets the projector",
        "recipes/overrides.py",
        '{k: v for k, v in kept.items() if k in fields} | {"name": value}',
        '{"name": value}',
        ("experiments/test_recipe.py",),
    ),
    # --- export
    Bug(
        "exported weights tell folders of this machine",
        "runs/export.py",
        "if not isinstance(value, Path) and key",
        "if key",
        ("test_export.py::test_the_header_of_the_weights_keeps_folders_to_itself",),
    ),
    Bug(
        "an ONNX graph that differs is kept",
        "runs/export.py",
        "if not difference <= TOLERANCE:",
        "if not difference <= 10:",
        ("test_export.py::test_a_graph_that_differs_is_removed",),
    ),
    Bug(
        "tied weights cannot be exported",
        "core/weights.py",
        "value.detach().cpu().clone(memory_format=torch.contiguous_format)",
        "value.detach().cpu()",
        ("test_weights.py",),
    ),
    Bug(
        "an export that reads back differently is kept",
        "runs/export.py",
        "    if not run.modality.reads_back(",
        "    if False and not run.modality.reads_back(",
        ("test_export_others.py",),
    ),
]


class Outcome(NamedTuple):
    """What the tests made of a bug."""

    bug: Bug
    caught: bool
    output: str


def occurrences(bug: Bug) -> int:
    """How often the text of a bug is in its file: once, where it can be put in."""
    path = SOURCE / bug.file
    return path.read_text(encoding="utf-8").count(bug.old) if path.is_file() else 0


def run_tests(source: Path, tests: Iterable[str], slow: bool) -> subprocess.CompletedProcess[str]:
    """Run tests with the package in `source`, up to the first failure."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "--no-header"),
            *("-m", "slow" if slow else "not slow and not docs"),
            *(str(TESTS / test) for test in tests),
        ],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def attempt(bug: Bug) -> Outcome:
    """Run the tests of a bug on a copy of the source with it."""
    if occurrences(bug) != 1:
        return Outcome(bug, False, f"found {occurrences(bug)} times in {bug.file}: {bug.old}")
    with tempfile.TemporaryDirectory() as place:
        source = shutil.copytree(
            SOURCE.parent, Path(place) / "src", ignore=shutil.ignore_patterns("*.egg-info")
        )
        path = source / "macl" / bug.file
        path.write_text(path.read_text(encoding="utf-8").replace(bug.old, bug.new))
        done = run_tests(source, bug.tests, bug.slow)
    # 1: tests ran and some failed. Others mean that nothing was tested.
    return Outcome(bug, done.returncode == 1, done.stdout[-1500:])


def main() -> int:
    """Print a line for each bug; the exit code is the number of bugs that were not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", default="", help="bugs whose name or file contains this")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at a time")
    parser.add_argument("--list", action="store_true", help="print the bugs and end")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without bugs")
    given = parser.parse_args()
    chosen = [bug for bug in BUGS if given.only in bug.name or given.only in bug.file]
    if given.list:
        for bug in chosen:
            print(f"{bug.file}: {bug.name} → {', '.join(bug.tests)}{' (slow)' * bug.slow}")
        return 0
    for slow in () if given.trust else (False, True):
        tests = sorted({test for bug in chosen if bug.slow == slow for test in bug.tests})
        if tests and (done := run_tests(SOURCE.parent, tests, slow)).returncode:
            print(f"these tests fail without any bug:\n{done.stdout[-3000:]}")
            return 1
    missed = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for bug, caught, output in pool.map(attempt, chosen):
            missed += not caught
            print(f"{'caught' if caught else 'MISSED'}  {bug.file}: {bug.name}", flush=True)
            if not caught:
                print(output, flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} bugs caught")
    return missed


if __name__ == "__main__":
    sys.exit(main())
