"""Choosing formats, on plain data: the parts of :mod:`relayout.graph.planner`.

``problem``  what is asked: operations with options, values, conversions
``solution``  what is answered: choices and conversions
``conversions``  the cheapest conversions that make a set of formats
``model``  a problem as variables and tables of two
``dominance``  options that no best plan needs
``elimination``  the least sum of tables, exactly
``search``  a bound and a good answer where that takes too much
``solving``  from a problem to its best plan, or to the reason why there is none
``baselines``  what others do: greedy propagation, one format everywhere
``explanation``  what a plan would cost without each of its conversions
"""
