"""Programs that rechunk a Zarr array, one a file, each run as a script in a process of its own.

A script gets a problem as JSON in its first argument (:class:`relayout.bench.rechunking.Problem` has the
fields) and prints, as its last line, JSON with what was measured::

    {"seconds": 12.3, "versions": {"zarr": "2.18.7"}}

Seconds are those of the conversion, without imports and without the start of a cluster. Nothing here imports
Relayout but :mod:`.with_relayout`, so the scripts run in environments that don't have it. The names begin
with ``with_``, since a script's folder comes first when it imports.
"""
