"""Tables as text and HTML, charts as inline SVG and sparklines. It knows no task, model or cue.

Colours work on light and on dark pages: text takes the colour of the page around it, and no script, style sheet or
file is needed, so that the same text serves a page and a notebook.
"""

from softcue.drawing.bars import bar_chart, legend
from softcue.drawing.charts import (
    curves_chart,
    curves_legend,
    histogram,
    histograms,
    line_chart,
    scatter_chart,
    side_by_side,
)
from softcue.drawing.points import LabelledPoint, points_chart
from softcue.drawing.sparkline import sparkline
from softcue.drawing.tables import MarkedCell, heat_table, html_table, marked_table, text_table, value_table

__all__ = [
    "LabelledPoint",
    "MarkedCell",
    "bar_chart",
    "curves_chart",
    "curves_legend",
    "heat_table",
    "histogram",
    "histograms",
    "html_table",
    "legend",
    "line_chart",
    "marked_table",
    "points_chart",
    "scatter_chart",
    "side_by_side",
    "sparkline",
    "text_table",
    "value_table",
]
