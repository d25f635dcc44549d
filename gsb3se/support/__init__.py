"""Tools that know no statistics: errors, files, labels, vectors on the simplex, matrices, bars.

Nearly all of it could serve another package; :mod:`~gsb3se.support.limits` stands here so that
every room can read it. Reading and writing (:mod:`~gsb3se.support.files`,
:mod:`~gsb3se.support.tables`) is whole or not at all and never unpickles; optional packages are
imported by :func:`gsb3se.support.errors.require`, which names the command that installs them; every
progress bar comes from :mod:`~gsb3se.support.progress`.

This room imports nothing else of the package.
"""
