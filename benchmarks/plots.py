"""Plots of a benchmark as PNG: bars for figures side by side, lines for what changes over a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias, assert_never


class Scale(Enum):
    LINEAR = "linear"
    LOGARITHMIC = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """`values` by group, then by bar; a bar without a value is left out."""

    title: str
    unit: str
    values: Mapping[str, Mapping[str, float | None]]
    scale: Scale = Scale.LINEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    title: str
    across: str
    unit: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    scale: Scale = Scale.LINEAR


Plot: TypeAlias = Bars | Lines
_WIDTH_INCHES = 9.0
_HEIGHT_INCHES = 3.6
_DOTS_PER_INCH = 110
_FEW_POINTS = 60
_COLOURS = {"Tidegate": "#0b6e99", "Flink": "#e6526f", "Spark": "#f2a33c", "PyFlink": "#b07cc6", "Flink SQL": "#9c3f57"}


def draw(plots: Sequence[Plot], path: Path) -> None:
    """All plots of a benchmark, one below the other."""
    # Only a whole run needs it, and it takes a second to import.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(plots), 1, figsize=(_WIDTH_INCHES, _HEIGHT_INCHES * len(plots)), squeeze=False, layout="constrained"
    )
    for plot, (axis,) in zip(plots, axes, strict=True):
        match plot:
            case Bars():
                _bars(axis, plot)
            case Lines():
                _lines(axis, plot)
            case _:
                assert_never(plot)
        axis.set_title(plot.title, loc="left", fontsize=10)
        axis.set_yscale(plot.scale.value)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_axisbelow(True)
    figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    pyplot.close(figure)


def _bars(axis: Any, plot: Bars) -> None:
    groups = list(plot.values)
    bars = list(dict.fromkeys(bar for group in groups for bar in plot.values[group]))
    width = 0.8 / max(1, len(bars))
    for number, bar in enumerate(bars):
        places = [(at, plot.values[group].get(bar)) for at, group in enumerate(groups)]
        known = [(at + (number - (len(bars) - 1) / 2) * width, value) for at, value in places if value is not None]
        drawn = axis.bar([at for at, _ in known], [value for _, value in known], width, label=bar, color=_colour(bar))
        axis.bar_label(drawn, labels=[_brief(value) for _, value in known], fontsize=7, padding=1)
    axis.set_xticks(range(len(groups)), groups, fontsize=8)
    axis.set_ylabel(plot.unit, fontsize=8)
    axis.margins(y=0.15)
    if len(bars) > 1:
        axis.legend(fontsize=8, frameon=False)


def _lines(axis: Any, plot: Lines) -> None:
    for name, points in plot.series.items():
        marker = "o" if len(points) <= _FEW_POINTS else None
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axis.plot(xs, ys, label=name, linewidth=1.4, color=_colour(name), marker=marker, markersize=3)
    axis.set_xlabel(plot.across, fontsize=8)
    axis.set_ylabel(plot.unit, fontsize=8)
    if plot.scale is Scale.LINEAR:
        axis.set_ylim(bottom=0)
    if len(plot.series) > 1:
        axis.legend(fontsize=8, frameon=False)


def _colour(name: str) -> str | None:
    return _COLOURS.get(name)


def _brief(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
