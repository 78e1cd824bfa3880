"""Relayout: the memory formats of tensors, described, shown, translated and converted.

>>> import relayout as rl
>>> x = rl.Layout((1, 17, 2, 2), "nChw8c")
>>> x.offset(0, 9, 1, 0), x.padded_dims
(49, (1, 24, 2, 2))
>>> rl.Format("nChw16c").name("openvino")
'b_fs_yx_fsv16'
"""

from relayout import notation as notation
from relayout.errors import AmbiguousFormat, LayoutError, UnknownFormat, Unsupported
from relayout.layout import views as views
from relayout.layout.descriptor import MemoryDesc, undef
from relayout.layout.descriptor import any_format as any
from relayout.layout.format import Format
from relayout.layout.layout import Layout

__version__ = "0.1.0"
