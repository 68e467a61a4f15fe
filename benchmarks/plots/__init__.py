"""Plots of what W7 and W8 wrote as JSON: `make bench-plots`, or `python -m benchmarks.plots --help`. Needs matplotlib (the extra `bench`).

plot.py       one plot: axes, colours, caption, and an SVG that is the same bytes each time
scaling.py    W7: a plot for each curve
staleness.py  W8: the time of a step, the idle share, and AUC where it was given
"""
