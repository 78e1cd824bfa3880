"""Recurrent cells: the product with the state, the gates, and the loop over time steps, as one kernel.

=============  ==============================================================================================
``cell``       what a cell computes, as data; what becomes of the sums of its gates, as code
``plan``       a layer's recurrence as plain data: sizes, places, how it is cut among threads, what that costs
``writer``     text that forward and backward share: loops over time and tasks, register tiles of products
``module``     a plan as text: the cells
``gradient``   the backward pass through time: plan and text
``sums``       gradients of biases and peepholes
``turns``      threads that take turns without anybody outside: claims, and waiting for each other
=============  ==============================================================================================
"""
