"""What a layout *is*: formats, layouts, memory descriptors, and views of them.

Standard library only; NumPy comes in where many offsets are asked for at once.

==================  =======================================================================================
``format``          an order of digits, sizes unknown
``layout``          a format with sizes or strides: where every element lies
``canonical``       normal forms: when are two layouts the same function?
``difference``      what moves between two layouts of the same tensor
``views``           other ways to index the same memory
``descriptor``      a layout and a data type, with oneDNN's questions and rules (``reshape``: its reshape)
``spelling``        the door through which text reaches :mod:`relayout.notation`
==================  =======================================================================================
"""
