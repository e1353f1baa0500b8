"""MCSE's figure 3 and KDMCSE's figure 7: a score against one parameter of the runs.

    python examples/curve.py FILE PARAMETER --out PICTURE

such as: margin.json margin --out margin.png, of the file that
`sightline compare results/margin-* --baseline simcse --format json --out margin.json` writes.
Runs that differ in nothing else are a line of means, with the deviation over seeds; a run without
the parameter is a dashed line. Values are evenly spaced, null last.
"""

import argparse
import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

import sightline as sl


def full_name(wanted, runs):
    """Such as objective.margin, of which margin is the end."""
    names = {name for run in runs for name in run["parameters"]}
    found = sorted(name for name in names if f".{name}".endswith(f".{wanted}"))
    if wanted in found or len(found) == 1:
        return wanted if wanted in found else found[0]
    raise sl.SightlineError(f"{wanted}: expected one parameter, found {', '.join(found) or 'none'}")


def lines_of(runs, name):
    """Label → runs that agree in all parameters but one; labels tell what the lines differ in."""
    lines = {}
    for run in runs:
        others = {key: str(value) for key, value in run["parameters"].items() if key != name}
        lines.setdefault(tuple(sorted(others.items())), []).append(run)
    for others, line in lines.items():
        objective = dict(others)["objective"]
        alike = [set(each) for each in lines if dict(each)["objective"] == objective]
        told = sorted(set(others) - set.intersection(*alike))
        yield ", ".join([objective, *(f"{key} {value}" for key, value in told)]), line


def draw(axis, runs, name, metric):
    """Lines, and a dashed one for each run without the parameter."""
    value_of = {run["name"]: run["parameters"].get(name, "") for run in runs}
    varied = [run for run in runs if name in run["parameters"]]
    values = [value_of[run["name"]] for run in varied]
    if all(value is None or isinstance(value, int | float) for value in values):
        values.sort(key=lambda value: (value is None, value))
    places = {str(value): place for place, value in enumerate(dict.fromkeys(map(str, values)))}
    for label, line in lines_of(varied, name):
        scored = [run for run in line if run["cells"][metric]["mean"] is not None]
        at = {run["name"]: places[str(value_of[run["name"]])] for run in scored}
        cells = [run["cells"][metric] for run in sorted(scored, key=lambda run: at[run["name"]])]
        means, spread = ([cell[key] or 0 for cell in cells] for key in ("mean", "sd"))
        axis.errorbar(sorted(at.values()), means, spread, fmt="o-", capsize=3, label=label)
    for run in runs:
        if name not in run["parameters"] and (mean := run["cells"][metric]["mean"]) is not None:
            axis.axhline(mean, color="black", linestyle="--", linewidth=1, label=run["name"])
    axis.set_xticks(range(len(places)), places)
    axis.set(xlabel=name, ylabel=metric)
    axis.legend(frameon=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("parameter", metavar="PARAMETER")
    parser.add_argument("--metric", help="default: the average, or else the first score")
    parser.add_argument("--out", type=Path, required=True, metavar="PICTURE")
    options = parser.parse_args()
    table = json.loads(options.file.read_text())["table"]
    metrics = [column["name"] for column in table["columns"]]
    metric = options.metric or ("Avg" if "Avg" in metrics else metrics[0])
    if metric not in metrics:
        parser.error(f"--metric: found {metric}, expected one of {', '.join(metrics)}")
    runs = [row for row in table["rows"] if row["kind"] == "run"]
    figure = Figure((7, 3.5), layout="constrained")
    draw(figure.subplots(), runs, full_name(options.parameter, runs), metric)
    figure.savefig(options.out, dpi=180)


if __name__ == "__main__":
    try:
        main()
    except sl.SightlineError as error:
        sys.exit(f"error: {error}")
