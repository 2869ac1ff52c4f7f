"""Studies, which are grids of runs, and comparisons of cues and methods. `softcue.compare` is in `compare.py`,
`softcue.tune` in `tune.py`.

study = softcue.studies.read_study("quick", seeds=1)
softcue.studies.run_study(study, open_study("studies/quick"), make_engine("local", "studies/quick"))
softcue.studies.make_report(open_study("studies/quick")).save(Path("report"))
"""

from softcue.studies.comparison import Comparison, Pair
from softcue.studies.engines import make_engine
from softcue.studies.estimate import estimate_study
from softcue.studies.methods import MethodComparison, MethodLine, TrainedRun, compare_methods
from softcue.studies.predictions import CuePair, DifferentRow, PredictionComparison, compare_predictions
from softcue.studies.report import make_report
from softcue.studies.runner import read_status, run_study
from softcue.studies.runs import plan_runs
from softcue.studies.statistics import Difference, bootstrap_difference, exact_mcnemar
from softcue.studies.store import open_study
from softcue.studies.study import Study, list_studies, make_study, read_study
from softcue.studies.table import Table
from softcue.studies.tuning import Tuning, TuningTrial

__all__ = [
    "Comparison",
    "CuePair",
    "Difference",
    "DifferentRow",
    "MethodComparison",
    "MethodLine",
    "Pair",
    "PredictionComparison",
    "Study",
    "Table",
    "TrainedRun",
    "Tuning",
    "TuningTrial",
    "bootstrap_difference",
    "compare_methods",
    "compare_predictions",
    "estimate_study",
    "exact_mcnemar",
    "list_studies",
    "make_engine",
    "make_report",
    "make_study",
    "open_study",
    "plan_runs",
    "read_status",
    "read_study",
    "run_study",
]
