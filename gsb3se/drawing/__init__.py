"""Pictures of shares, confusions, graphs and windows, as matplotlib figures.

Functions here take arrays and labels, and return figures that fit a phone and need no window;
:mod:`gsb3se.plots` writes them to files, and reports put them into pages.

This room knows labels and the graph. It must not know posteriors, files or pages.
"""
