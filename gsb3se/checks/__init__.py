"""What is asked of a posterior or a backend that takes more than looking at it.

How an answer depends on the graph (:mod:`~gsb3se.checks.sensitivity`) and whether a backend is
calibrated on simulated data (:mod:`~gsb3se.checks.rank_calibration`). A question that needs
inference to be answered, such as what intervals to expect on a user's own data, is a file here.

This room knows every backend. It must not know files, batches or the command line.
"""
