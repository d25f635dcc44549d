"""Exact chains: the hierarchy's own posterior, started from the approximation.

``coordinates`` says where the posterior is, cell by cell, from what the columns and the mode of the
shares tell; ``hinges`` bend a normal into a cell that may be empty; ``density`` is the exact log
density and its force in these coordinates, with their volume; ``chains`` run over it until early
and late draws agree. What is approximate here only sets the pace: it is a change of variables,
whose Jacobian is tested.
"""
