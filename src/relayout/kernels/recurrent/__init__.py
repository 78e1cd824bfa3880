"""Recurrent cells: the product with the state, the gates, and the loop over time steps, as one kernel.

=============  ==============================================================================================
``cell``       what a cell computes, as data; what becomes of the sums of its gates, as code
``plan``       a layer's recurrence as plain data: sizes, places, how it is cut among threads, what that costs
``module``     a plan as text: register tiles of gates, and the loop over time
``turns``      threads that take turns without anybody outside: claims, and waiting for each other
=============  ==============================================================================================
"""
