"""Processors that kernels are made for.

==============  =============================================================================================
``machine``     what kernels are shaped by: vector width, features, caches; the host, or any by its LLVM name
``memory``      how much memory the machine has
``light``       importing llvmlite without what nobody here uses
``permission``  leave of the system to use registers that it does not save for every process
==============  =============================================================================================
"""
