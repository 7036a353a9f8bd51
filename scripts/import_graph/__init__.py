"""Counts imports between the modules of each folder; fails where they become more.

    python -m scripts.import_graph            the counts; last a line of JSON
    python -m scripts.import_graph --check    1 where a count is above that of permitted.json
    python -m scripts.import_graph --write    permitted.json gets the present counts

Entries
    The modules and sub-packages directly in a folder, without its `__init__.py`. Folders of fewer
    than two entries are left out. The folder `.` has the packages of the repository.
Arrows
    Pairs (A, B) of entries of a folder where a module in A imports one in B, however often. So
    an import is part of one arrow, in the deepest folder that contains both modules. It counts
    inside functions and below `TYPE_CHECKING` as well. `from package import name` imports the
    module `package.name` where there is one, `package/__init__.py` otherwise.
Levels
    level(A) = 1 + max(level(B) for arrows A → B), 1 without arrows; a circle is one entry. The
    levels of a folder are the highest level of its entries.
Circles
    Strongly connected components of more than one entry, within a folder.
Upward imports
    height(A) = the highest level of A's modules, by the imports within A's circle. An arrow A → B
    of a circle with height(A) ≤ height(B) is an upward import: its files go down, its entries
    do not. Modules of a circle of modules have one level, so that their imports do not count.
"""
